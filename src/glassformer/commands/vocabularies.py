"""``glassformer tokens train`` and ``glassformer tokens sizes``."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, nearest, need, note
from .common import count_noun, new_folder, print_json, print_table

if TYPE_CHECKING:
    from ..inspection.tokens.vocabulary_size import Size

WIDTH = 40  # of a bar


def train(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Train a vocabulary and save it as tokenizer.json."""
    from ..inspection.tokens import compare
    from ..tokenizer import train as train_tokenizer
    from ..tokenizer import trainers

    kind = _kind(args.kind, trainers.TRAINED)
    texts = _texts(names, "train", args.separator) if names or kind != "byte" else iter(())
    specials = (*trainers.SPECIALS.get(kind, (trainers.END,)), *args.special)
    specials_in_text: Counter[str] = Counter()

    def count_specials() -> Iterator[str]:
        for piece in texts:
            specials_in_text.update(trainers.written_specials(piece))
            yield piece

    need(args.out is not None, "Say where the tokenizer goes: --out DIR.")
    new_folder(args.out)  # its tokenizer is the model's
    tokenizer = train_tokenizer(kind, count_specials(), args.size, tuple(dict.fromkeys(specials)))
    for name in sorted(specials_in_text.keys() - set(specials)):
        note(
            f'"{name}" is in this text {count_noun(specials_in_text[name], "time")} and was learnt as text; if '
            "it is a special token, "
            f"give --special '{name}', and if it parts documents, --separator '{name}'."
        )
    size = args.size or (
        trainers.DEFAULT_SIZE if kind in trainers.SIZED and kind != "words" else None
    )
    if size is not None and tokenizer.size < size:
        note(
            f"This text gives {tokenizer.size:,} entries, not {size:,}: it has no more pieces "
            "that are worth one."
        )
    tokenizer.save(args.out)
    vocabulary = compare.count(tokenizer)
    path = str(args.out / "tokenizer.json")
    if args.json:
        print_json(
            {
                "kind": kind,
                "entries": vocabulary.entries,
                "special": vocabulary.special,
                "file": path,
            }
        )
    else:
        print(
            f"{kind}: {count_noun(vocabulary.base, 'piece')}, {vocabulary.special} special, in {path}"
        )


def sizes(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Vocabulary size against tokens for each word and parameters of the embedding."""
    from .. import files
    from ..inspection.tokens import vocabulary_size
    from ..tokenizer import trainers

    kind = _kind(args.kind, trainers.SIZED)
    ending = args.out.suffix.lower() if args.out is not None else None
    if ending not in (None, ".png", ".svg"):
        raise UserError(
            f"--out {args.out} is neither .png nor .svg; give a name that ends in one of them."
        )
    dim = 512 if args.dim is None else args.dim
    texts = _texts(names, "sizes", args.separator)
    measured_sizes = vocabulary_size.sizes(kind, texts, args.sizes or vocabulary_size.USUAL, dim)
    if args.out is not None:
        files.write(
            args.out,
            lambda beside: _picture(
                measured_sizes, kind, dim, beside, ending[1:] if ending else "png"
            ),
        )
    if args.json:
        print_json({"kind": kind, "dim": dim, "sizes": [vars(size) for size in measured_sizes]})
        return
    _table(measured_sizes, dim)
    if args.out is not None:
        print(args.out)


VERBS = {"train": train, "sizes": sizes}


def _kind(kind: str | None, kinds: Sequence[str]) -> str:
    """The kind asked for, bpe where none is."""
    if kind not in (None, *kinds):
        raise UserError(f'There is no kind of tokenizer "{kind}" here.{nearest(str(kind), kinds)}')
    return kind or "bpe"


def _texts(names: Sequence[str], verb: str, separator: str | None) -> Iterator[str]:
    """The text of files, folders and named corpora."""
    from ..data import find as find_corpus

    need(
        bool(names),
        f"tokens {verb} needs a FILE; to see the word itself as tokens: tokens --text {verb}.",
    )
    sources = [find_corpus(name, separator=separator) for name in names]
    return (piece for source in sources for piece in source.texts())


def _table(sizes: Sequence[Size], dim: int) -> None:
    most = max(size.tokens_per_word for size in sizes)
    rows = []
    for size in sizes:
        figures = (
            f"{size.tokens_per_word:.3f}",
            f"{size.characters_per_token:.2f}",
            f"{size.unknown:.2%}",
        )
        bar = "█" * max(1, round(WIDTH * size.tokens_per_word / most))
        rows.append((f"{size.entries:,}", *figures, f"{size.parameters:,}", bar))
    print_table(
        rows,
        ("entries", "tokens/word", "chars/token", "unknown", f"entries x {dim}", ""),
        left_aligned=(5,),
    )
    print("Trained on the first nine tenths of the text, counted on the last.")


def _picture(sizes: Sequence[Size], kind: str, dim: int, path: Path, form: str) -> None:
    """Both curves over the size, on two axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("Pictures need matplotlib; pip install matplotlib.") from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    right = axes.twinx()
    across = [size.entries for size in sizes]
    axes.plot(
        across,
        [size.tokens_per_word for size in sizes],
        "o-",
        color="#0072b2",
        label="tokens for each word",
    )
    right.plot(
        across, [size.parameters / 1e6 for size in sizes], "s--", color="#d55e00", label="embedding"
    )
    axes.set(
        xscale="log",
        xlabel=f"entries of the vocabulary ({kind})",
        ylabel="tokens for each word (solid)",
    )
    axes.set_xticks(across, [f"{entries:,}" for entries in across])
    axes.minorticks_off()
    right.set(ylabel="million parameters (dashed)", title=f"an embedding {dim} wide")
    axes.set_ylim(bottom=0)
    right.set_ylim(bottom=0)
    figure.savefig(path, format=form, dpi=150)

"""``glassformer tokens train`` and ``glassformer tokens sizes``."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, nearest, need, note
from .common import counted, emit, new_folder, table

if TYPE_CHECKING:
    from ..inspection.tokens.vocabulary_size import Size

WIDTH = 40  # of a bar


def train(given: argparse.Namespace, names: Sequence[str]) -> None:
    """Train a vocabulary and save it as tokenizer.json."""
    from ..inspection.tokens import compare
    from ..tokenizer import train as train_tokenizer
    from ..tokenizer import trainers

    kind = _kind(given.kind, trainers.TRAINED)
    texts = _texts(names, "train", given.separator) if names or kind != "byte" else iter(())
    specials = (*trainers.SPECIALS.get(kind, (trainers.END,)), *given.special)
    seen: Counter[str] = Counter()

    def noticed() -> Iterator[str]:
        for piece in texts:
            seen.update(trainers.written_specials(piece))
            yield piece

    need(given.out is not None, "Say where the tokenizer goes: --out DIR.")
    new_folder(given.out)  # its tokenizer is the model's
    tokenizer = train_tokenizer(kind, noticed(), given.size, tuple(dict.fromkeys(specials)))
    for name in sorted(seen.keys() - set(specials)):
        note(
            f'"{name}" is in this text {counted(seen[name], "time")} and was learnt as text; if '
            "it is a special token, "
            f"give --special '{name}', and if it parts documents, --separator '{name}'."
        )
    asked = given.size or (
        trainers.DEFAULT_SIZE if kind in trainers.SIZED and kind != "words" else None
    )
    if asked is not None and tokenizer.size < asked:
        note(
            f"This text gives {tokenizer.size:,} entries, not {asked:,}: it has no more pieces "
            "that are worth one."
        )
    tokenizer.save(given.out)
    held = compare.count(tokenizer)
    path = str(given.out / "tokenizer.json")
    if given.json:
        emit({"kind": kind, "entries": held.entries, "special": held.special, "file": path})
    else:
        print(f"{kind}: {counted(held.base, 'piece')}, {held.special} special, in {path}")


def sizes(given: argparse.Namespace, names: Sequence[str]) -> None:
    """Vocabulary size against tokens for each word and parameters of the embedding."""
    from .. import files
    from ..inspection.tokens import vocabulary_size
    from ..tokenizer import trainers

    kind = _kind(given.kind, trainers.SIZED)
    ending = given.out.suffix.lower() if given.out is not None else None
    if ending not in (None, ".png", ".svg"):
        raise UserError(
            f"--out {given.out} is neither .png nor .svg; give a name that ends in one of them."
        )
    dim = 512 if given.dim is None else given.dim
    texts = _texts(names, "sizes", given.separator)
    found = vocabulary_size.sizes(kind, texts, given.sizes or vocabulary_size.USUAL, dim)
    if given.out is not None:
        files.write(
            given.out,
            lambda beside: _picture(found, kind, dim, beside, ending[1:] if ending else "png"),
        )
    if given.json:
        emit({"kind": kind, "dim": dim, "sizes": [vars(size) for size in found]})
        return
    _table(found, dim)
    if given.out is not None:
        print(given.out)


VERBS = {"train": train, "sizes": sizes}


def _kind(kind: str | None, known: Sequence[str]) -> str:
    """The kind asked for, bpe where none is."""
    if kind not in (None, *known):
        raise UserError(f'There is no kind of tokenizer "{kind}" here.{nearest(str(kind), known)}')
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


def _table(found: Sequence[Size], dim: int) -> None:
    most = max(size.tokens_per_word for size in found)
    rows = []
    for one in found:
        figures = (
            f"{one.tokens_per_word:.3f}",
            f"{one.characters_per_token:.2f}",
            f"{one.unknown:.2%}",
        )
        bar = "█" * max(1, round(WIDTH * one.tokens_per_word / most))
        rows.append((f"{one.entries:,}", *figures, f"{one.parameters:,}", bar))
    table(
        rows,
        ("entries", "tokens/word", "chars/token", "unknown", f"entries x {dim}", ""),
        left=(5,),
    )
    print("Trained on the first nine tenths of the text, counted on the last.")


def _picture(found: Sequence[Size], kind: str, dim: int, path: Path, form: str) -> None:
    """Both curves over the size, on two axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("Pictures need matplotlib; pip install matplotlib.") from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    across = [size.entries for size in found]
    left.plot(
        across,
        [size.tokens_per_word for size in found],
        "o-",
        color="#0072b2",
        label="tokens for each word",
    )
    right.plot(
        across, [size.parameters / 1e6 for size in found], "s--", color="#d55e00", label="embedding"
    )
    left.set(
        xscale="log",
        xlabel=f"entries of the vocabulary ({kind})",
        ylabel="tokens for each word (solid)",
    )
    left.set_xticks(across, [f"{entries:,}" for entries in across])
    left.minorticks_off()
    right.set(ylabel="million parameters (dashed)", title=f"an embedding {dim} wide")
    left.set_ylim(bottom=0)
    right.set_ylim(bottom=0)
    figure.savefig(path, format=form, dpi=150)

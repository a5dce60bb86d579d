"""``glassformer tokens train`` and ``glassformer tokens sizes``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError, nearest, note
from .common import count_noun, new_folder, text_table
from .options import Separator
from .parsing import CommandOutput, Words

if TYPE_CHECKING:
    from ..sight.tokens.vocabulary_size import Size

WIDTH = 40  # of a bar


def train(
    names: Words = (),
    *,
    kind: str | None = None,
    size: int | None = None,
    special: Words = (),
    field: str = "text",
    separator: Separator | None = None,
    out: Path | None = None,
) -> CommandOutput:
    """Trains a vocabulary and saves it as tokenizer.json.

    names FILE: files, folders and named corpora
    kind KIND: bpe, wordpiece, unigram, char, byte or words (bpe)
    size N: number of entries
    special NAME: an extra special token; no entry crosses it; may be repeated
    out DIR: the folder of the tokenizer
    """
    from ..formats import tokenizer_trainers as trainers
    from ..sight.tokens import comparison

    kind = _kind(kind, trainers.TRAINED)
    texts = _texts(names, "train", field, separator) if names or kind != "byte" else iter(())
    specials = (*trainers.SPECIALS.get(kind, (trainers.END,)), *special)
    specials_in_text: Counter[str] = Counter()

    def count_specials() -> Iterator[str]:
        for piece in texts:
            specials_in_text.update(trainers.written_specials(piece))
            yield piece

    if out is None:
        raise UserError("Say where the tokenizer goes: --out DIR.")
    new_folder(out)  # its tokenizer is the model's
    tokenizer = trainers.train(kind, count_specials(), size, tuple(dict.fromkeys(specials)))
    for name in sorted(specials_in_text.keys() - set(specials)):
        note(
            f'"{name}" is in this text {count_noun(specials_in_text[name], "time")} and was learnt as text; if '
            "it is a special token, "
            f"give --special '{name}'; if it separates documents, --separator '{name}'."
        )
    if size is None and kind in trainers.SIZED and kind != "words":
        size = trainers.DEFAULT_SIZE
    if size and tokenizer.size < size:
        note(
            f"This text gives {tokenizer.size:,} entries, not {size:,}: no further pair of pieces "
            "repeats often enough."
        )
    tokenizer.save(out)
    vocabulary = comparison.count(tokenizer)
    path = str(out / "tokenizer.json")
    base = count_noun(vocabulary.base, "piece")
    return CommandOutput(
        {
            "kind": kind,
            "entries": vocabulary.entries,
            "special": vocabulary.special,
            "file": path,
        },
        [f"{kind}: {base}, {vocabulary.special} special, in {path}"],
    )


def sizes(
    names: Words = (),
    *,
    kind: str | None = None,
    field: str = "text",
    separator: Separator | None = None,
    sizes: list[int] | None = None,
    dim: int = 512,
) -> CommandOutput:
    """Measures vocabulary size against tokens for each word and parameters of the embedding.

    names FILE: files, folders and named corpora
    kind KIND: bpe, wordpiece or unigram (bpe)
    sizes N: several numbers of entries
    dim N: width of the embedding
    """
    from ..formats import tokenizer_trainers as trainers
    from ..sight.tokens import vocabulary_size

    kind = _kind(kind, trainers.SIZED)
    texts = _texts(names, "sizes", field, separator)
    measured = vocabulary_size.sizes(kind, texts, sizes or vocabulary_size.USUAL, dim)
    record = {"kind": kind, "dim": dim, "sizes": [vars(size) for size in measured]}
    return CommandOutput(record, _table(measured, dim))


def _kind(kind: str | None, kinds: Sequence[str]) -> str:
    """The kind asked for, bpe where none is."""
    if kind not in (None, *kinds):
        raise UserError(f'There is no kind of tokenizer "{kind}" here.{nearest(str(kind), kinds)}')
    return kind or "bpe"


def _texts(names: Sequence[str], verb: str, field: str, separator: str | None) -> Iterator[str]:
    """The text of files, folders and named corpora."""
    from ..formats.data import find as find_corpus

    if not names:
        raise UserError(
            f"tokens {verb} needs a FILE; to see the word itself as tokens: tokens --text {verb}."
        )
    sources = [find_corpus(name, field, separator) for name in names]
    return (piece for source in sources for piece in source.texts())


def _table(sizes: Sequence[Size], dim: int) -> list[str]:
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
    heading = ("entries", "tokens/word", "chars/token", "unknown", f"entries x {dim}", "")
    ending = "Trained on the first nine tenths of the text, counted on the last."
    return [*text_table.lines(rows, heading, (5,)), ending]

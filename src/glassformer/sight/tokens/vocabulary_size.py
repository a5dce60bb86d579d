"""The size of a vocabulary: tokens for each word against parameters of the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.errors import UserError, need
from ...core.tokenizer import train as train_tokenizer

USUAL = (512, 1024, 2048, 4096, 8192, 16384)
FEWEST = 10  # words that are counted
HELD_OUT = 10  # one in so many words is kept from training, at the end, and counted


@dataclass(frozen=True)
class Size:
    """One vocabulary: its entries, tokens for each word and characters for each token on text it
    was not trained on.

    ``unknown`` is the share of tokens that stand for the unknown; ``parameters`` are those of one
    embedding.
    """

    entries: int
    tokens_per_word: float
    characters_per_token: float
    unknown: float
    parameters: int


def sizes(
    kind: str, texts: Iterable[str], entries: Sequence[int] = USUAL, dim: int = 512
) -> list[Size]:
    """Vocabularies of one kind and these sizes, trained on the first nine tenths, counted on the
    last tenth.

    Sizes that the texts cannot fill are left out, with one entry for the largest that they can.
    Raises UserError.
    """
    if dim < 1 or any(size < 1 for size in entries):
        raise UserError("Sizes and the width of an embedding must be above 0; give other numbers.")
    joined = "".join(texts)
    cut = _border(joined)
    train = joined[:cut]
    test = joined[cut:]
    words = len(test.split())
    need(
        words >= FEWEST,
        "This text has too few words for training and counting; give a longer text.",
    )
    rows: list[Size] = []
    for size in sorted(set(entries)):
        tokenizer = train_tokenizer(kind, train.splitlines(keepends=True), size)
        if rows and rows[-1].entries == tokenizer.size:
            break
        ids = tokenizer.encode(test)
        unknown = sum(id == tokenizer.unk for id in ids) / len(ids)
        entry = Size(
            tokenizer.size, len(ids) / words, len(test) / len(ids), unknown, tokenizer.size * dim
        )
        rows.append(entry)
        if tokenizer.size < size:
            break
    return rows


def _border(text: str) -> int:
    """Start of the last tenth: after a line, or after a word."""
    cut = len(text) - len(text) // HELD_OUT
    line = text.rfind("\n", cut // 2, cut) + 1
    return line or text.rfind(" ", 0, cut) + 1

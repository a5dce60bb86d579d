"""Words in Context: does a word mean the same in two texts? Told by a cosine and a border that
training pairs set.

By word2vec a word has one vector; ``inspection.contexts`` has those of each depth of a model. N
pairs of texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.errors import UserError, need
from .vectors import Vectors
from .vocabulary import Array, read_lines

Place = tuple[str, int, int]  # a text, and from which to before which character of it a word stands

EXAMPLES = (
    ("bank", "She put her money in the bank.", "They had a picnic on the bank of the river."),
    (
        "it",
        "The animal didn't cross the street because it was too tired.",
        "The animal didn't cross the street because it was too wide.",
    ),
    (
        "it",
        "The cat lay on the mat because it was tired.",
        "The cat lay on the mat because it was soft.",
    ),
    (
        "it",
        "The chicken didn't cross the road because it was too tired.",
        "The chicken didn't cross the road because it was too wide.",
    ),
)
"""A word whose meaning, or whose referent, is another in the second sentence (after Vaswani and
Uszkoreit 2017)."""


@dataclass(frozen=True)
class Pair:
    """A word in two texts, and whether it means the same in both."""

    first: Place
    second: Place
    same_sense: bool


def read_wic(folder: Path, split: str) -> list[Pair]:
    """A part ("train", "dev", "test") of Words in Context (Pilehvar & Camacho-Collados 2019,
    1808.09121).

    Raises UserError, with the line, for files that are not of its form.
    """
    pairs = []
    names = (f"{split}.{kind}.txt" for kind in ("data", "gold"))
    data, gold = (read_lines(folder / name, "give the folder of WiC's files") for name in names)
    mismatch = (
        f"{folder} has {len(data)} pairs in {split} and {len(gold)} answers; restore the files."
    )
    need(len(data) == len(gold), mismatch)
    for number, (line, answer) in enumerate(zip(data, gold, strict=True), 1):
        try:
            _, _, numbers, first, second = line.split("\t")
            sides = zip((first, second), numbers.split("-"), strict=True)
            places = [(text, *list(re.finditer(r"\S+", text))[int(n)].span()) for text, n in sides]
        except (ValueError, IndexError):
            raise UserError(
                f"{folder / split}.data.txt line {number} is not of WiC's form; restore the file."
            ) from None
        pairs.append(Pair(places[0], places[1], answer.strip() == "T"))
    return pairs


def static_cosines(vectors: Vectors, pairs: Sequence[Pair]) -> Array:
    """The cosine of each pair's two words by one table (N, 1): 1 for the same word, 0 where one is
    unknown."""
    cosines = []
    for pair in pairs:
        first, second = (text[start:end].lower() for text, start, end in (pair.first, pair.second))
        unknown = None in (vectors.find(first), vectors.find(second))
        cosines.append(
            1.0 if first == second else 0.0 if unknown else vectors.cosine(first, second)
        )
    return np.array(cosines)[:, None]


def threshold(cosines: Array, labels: Array) -> float:
    """The cosine from which "the same" is said so that most answers (N,) are right."""
    values = np.unique(cosines)
    # from the highest on: "other" throughout, between two that follow each other, "the same"
    borders = np.array([np.inf, *(values[1:] + values[:-1])[::-1] / 2, (values[0] - 1) / 2])
    right = [accuracy(cosines, labels, border) for border in borders]
    return float(borders[np.argmax(right)])


def accuracy(cosines: Array, labels: Array, border: float) -> float:
    """Right answers in per cent."""
    return 100 * float(np.mean((cosines >= border) == labels))

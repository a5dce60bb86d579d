"""Training and validation data out of one corpus, cut at borders of documents."""

from __future__ import annotations

import itertools

import numpy as np

from ...core.errors import need
from ...core.training.shards import Shards


def split_corpus(shards: Shards, valid: float = 0.1) -> tuple[Shards, Shards]:
    """(train, valid): the last ``valid`` share of the tokens, as nanoGPT splits.

    Parts at the document border next to that place, or inside a document when no border is near.
    Raises UserError when one side would be empty.
    """
    need(
        0 < valid < 1,
        f"The validation share is {valid}; give one between 0 and 1, such as 0.1.",
    )
    size = len(shards)
    # 0.9 of a length is not to lose a token to rounding
    cut = _near_border(shards, int(size * (1 - valid) + 1e-6), 0.5 * min(valid, 1 - valid) * size)
    need(
        0 < cut < size,
        f"{shards.name} is too short to set {valid:.0%} of it aside; give more text.",
    )
    return shards.stretch(0, cut), shards.stretch(cut, size)


def spread_corpus(shards: Shards, valid: float, count: int) -> list[tuple[Shards, Shards]]:
    """``split_corpus`` of each of ``count`` stretches, so that validation data is like all of the text.

    A stretch begins at the document border next to its place, where one is near.
    """
    size = len(shards) // count
    inner = (_near_border(shards, size * number, size // 4) for number in range(1, count))
    cuts = [0, *inner, len(shards)]
    return [split_corpus(shards.stretch(a, b), valid) for a, b in itertools.pairwise(cuts)]


def _near_border(shards: Shards, place: int, near: float) -> int:
    """The document border next to ``place`` if it is at most ``near`` away, else the place."""
    at = int(np.searchsorted(shards.borders, shards.first + place))
    borders = shards.borders[max(at - 1, 0) : at + 1]
    close = [0, *(int(border) - shards.first for border in borders), len(shards)]
    border = min(close, key=lambda start: abs(start - place))
    return border if abs(border - place) <= near else place

"""The order of a corpus's rows where a list of them would be large.

The place of each row is computed when it is asked for, by a Feistel network over the numbers 0 to
size - 1 (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"): a number is a pair (a,
b), and in each round a pseudorandom function of one of them is added to the other, which can be
taken back. Nothing is held.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


ROUNDS = 8


class ComputedOrder:
    """A permutation of 0 to size - 1 whose numbers are computed when they are asked for."""

    def __init__(self, size: int, seed: np.random.SeedSequence) -> None:
        self.size, self.keys = size, seed.generate_state(ROUNDS, np.uint64)
        # sides[0] * sides[1] is at least size, by less than sides[0]
        self.sides = np.array([math.isqrt(size - 1) + 1, 0], np.uint64)
        self.sides[1] = -(-size // int(self.sides[0]))

    def __getitem__(self, rows: slice) -> Array:
        places = self.permute(np.arange(rows.start, rows.stop, dtype=np.uint64))
        # on along its cycle until it is back among the rows
        while (outside := places >= self.size).any():
            places[outside] = self.permute(places[outside])
        return places.astype(np.int64)

    def permute(self, numbers: Array) -> Array:
        """One pass of the network over numbers below sides[0] * sides[1]."""
        pair = list(np.divmod(numbers, self.sides[1]))
        for turn, key in enumerate(self.keys):
            side, size = turn % 2, self.sides[turn % 2]
            pair[side] = (pair[side] + _mixed(pair[1 - side] ^ key) % size) % size
        place: Array = pair[0] * self.sides[1] + pair[1]
        return place


def _mixed(numbers: Array) -> Array:
    """64-bit numbers as others that look random (SplitMix64's finalizer, Steele et al. 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = numbers ^ (numbers >> np.uint64(31))
    return mixed

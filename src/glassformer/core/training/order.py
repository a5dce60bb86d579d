"""The order of a corpus's rows in an epoch: a permutation that is a function of the seed alone.

Up to ``IN_MEMORY`` rows it is drawn as a list. Beyond, the place of each row is computed when it is
asked for, by a Feistel network over the numbers 0 to size - 1 (Black and Rogaway 2002, "Ciphers
with Arbitrary Finite Domains"): a number is a pair (a, b), and in each round a pseudorandom
function of one of them is added to the other, which can be taken back. Nothing is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Order = Callable[[int, int], Array]
"""Rows number low to high - 1 of an epoch, as their places in the corpus."""

LISTED, COMPUTED = 2, 3
"""Kinds of order; saved in checkpoints, since a resumed run must use the same one."""
IN_MEMORY = 1 << 24
"""Rows whose order is a list: 128 MiB."""
ROUNDS = 8


def order_kind_for(rows: int) -> int:
    """The kind of order (LISTED or COMPUTED) for a new run over so many rows."""
    return LISTED if rows <= IN_MEMORY else COMPUTED


def order_of(size: int, seed: np.random.SeedSequence, kind: int) -> Order:
    """A random order of 0 to size - 1."""
    if kind == COMPUTED:
        return _computed(size, seed.generate_state(ROUNDS, np.uint64))
    # RandomState's stream is the same in all versions of NumPy; 8 bytes a row
    listed = np.random.RandomState(np.random.PCG64(seed)).permutation(size)
    return lambda low, high: listed[low:high]


def _computed(size: int, keys: Array) -> Order:
    sides = np.array([math.isqrt(size - 1) + 1, 0], np.uint64)
    # sides[0] * sides[1] is at least size, by less than sides[0]
    sides[1] = -(-size // int(sides[0]))

    def permuted(numbers: Array) -> Array:
        pair = list(np.divmod(numbers, sides[1]))
        for turn, key in enumerate(keys):
            side = turn % 2
            pair[side] = (pair[side] + _mixed(pair[1 - side] ^ key) % sides[side]) % sides[side]
        place: Array = pair[0] * sides[1] + pair[1]
        return place

    def order(low: int, high: int) -> Array:
        places = permuted(np.arange(low, high, dtype=np.uint64))
        # on along its cycle until it is back among the rows
        while (outside := places >= size).any():
            places[outside] = permuted(places[outside])
        return places.astype(np.int64)

    return order


def _mixed(numbers: Array) -> Array:
    """Each of some 64-bit numbers as another that looks random (the finalizer of SplitMix64, Steele
    et al. 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = numbers ^ (numbers >> np.uint64(31))
    return mixed

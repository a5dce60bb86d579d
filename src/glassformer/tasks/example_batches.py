"""Examples as batches: several packed to a row, in an order that is a function of the seed alone.

    rows    | s s s </s> s s </s> s s s s </s> - |     pos starts again in each document; -1 is padding
            | t t </s> t t t t </s> t t </s> - - |     a pair has the same document number on both sides

Shapes: B rows of a batch, T context on both sides, N examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core.training.batches import Array, Batch, check_same, check_sizes
from .encoded import Encoded

EMPTY = {"tokens": 0, "targets": -1, "pos": -1, "segments": 0, "source": 0, "source_pos": -1}
# examples among which the last gaps of a row are closed: many to choose from, quick to look through
POOL = 8192


def pack(sizes: Array, room: int, order: Array) -> list[Array]:
    """Rows of examples, each in one: sizes (N, sides), no side of a row above ``room``; N indices
    in ``order``.

    A row takes the examples that come first until a quarter is left, then those of the next
    ``POOL`` that are nearest to its gap in size and shape (largest dot product; Panigrahy et al.
    2011, vector bin packing).
    """
    rows: list[Array] = []
    waiting = order[:0]
    for low in range(0, len(order), POOL):
        waiting = np.concatenate((waiting, order[low : low + POOL]))
        last = low + POOL >= len(order)
        full_rows, waiting = _fill(sizes[waiting], room, waiting, 0 if last else POOL // 4)
        rows += full_rows
    return rows


def _fill(sizes: Array, room: int, pool: Array, leftover: int) -> tuple[list[Array], Array]:
    """Rows out of a pool until no more than ``rest`` examples are left, and these."""
    shapes, shape = np.unique(sizes, axis=0, return_inverse=True)
    shape = shape.ravel()
    of_shape: list[list[int]] = [[] for _ in shapes]
    for place in range(len(pool) - 1, -1, -1):
        of_shape[shape[place]].append(place)
    count = np.bincount(shape, minlength=len(shapes))
    is_used = np.zeros(len(pool), bool)
    oldest = 0
    remaining = len(pool)
    rows = []
    while remaining > leftover:
        row: list[int] = []
        gap = np.full(sizes.shape[1], room)
        while remaining > len(row):
            while is_used[oldest]:
                oldest += 1
            place = oldest
            if row and (gap.min() <= room // 4 or (sizes[place] > gap).any()):
                fits = (shapes <= gap).all(1) & (count > 0)
                if not fits.any():
                    break
                best = of_shape[np.where(fits, shapes @ gap, -1).argmax()]
                while is_used[best[-1]]:
                    best.pop()
                place = best.pop()
            row.append(place)
            is_used[place] = True
            count[shape[place]] -= 1
            gap = gap - sizes[place]
        rows.append(pool[row])
        remaining -= len(row)
    return rows, pool[~is_used]


def in_order(sizes: Array, room: int) -> Iterator[Array]:
    """Examples packed into rows in the order given; the first that does not fit begins the next
    row."""
    first = 0
    filled = np.zeros(sizes.shape[1], np.int64)
    for place, size in enumerate(sizes):
        if ((filled + size) > room).any():
            yield np.arange(first, place)
            first, filled = place, 0 * filled
        filled = filled + size
    yield np.arange(first, len(sizes))


def batch_of(encoded: Encoded, rows: Sequence[Array], context: int, full: str = "") -> Batch:
    """A batch (B, T) of rows of examples; a side that no row fills is narrower, in steps of
    ``context`` / 16.

    The side with the column ``full`` is ``context`` wide: fewer shapes to compile for.
    """
    items = np.concatenate(rows)
    row = np.repeat(np.arange(len(rows)), [len(examples) for examples in rows])
    filled: dict[str, Array] = {}
    step = max(8, context // 16)  # few different widths
    for side in encoded.sides:
        size = side.sizes[items]
        before = np.cumsum(size) - size  # tokens of the batch before each example
        at = before - before[np.searchsorted(row, row)]  # the column in which it begins
        inside = np.arange(size.sum()) - np.repeat(before, size)
        width = (
            context
            if full in side.columns
            else min(context, -(-int((at + size).max()) // step) * step)
        )
        sources, destinations = (
            np.repeat(start, size) + inside for start in (side.starts[items], row * width + at)
        )
        for name, column in side.columns.items():
            filled[name] = np.full(len(rows) * width, EMPTY[name], np.int64)
            filled[name][destinations] = column[sources]
            filled[name] = filled[name].reshape(len(rows), width)
    for pos, document_ids in (("pos", "document_ids"), ("source_pos", "source_document_ids")):
        if pos in filled:
            filled[document_ids] = np.where(
                filled[pos] < 0, -1, np.cumsum(filled[pos] == 0, axis=1) - 1
            )
    filled.setdefault("targets", np.full_like(filled["tokens"], -1))
    if encoded.labels is not None:
        filled["labels"] = encoded.labels[items]
    if encoded.reference is not None:
        filled["labels"] = encoded.reference[items].ravel()
    return Batch(**{name: torch.from_numpy(values) for name, values in filled.items()})


class ExampleBatches(Iterator[Batch]):
    """An endless iterator of training batches: B rows of up to ``context`` tokens, each example
    once an epoch.

    Which examples share a row and the order of the rows are a function of (seed, epoch) alone, so
    ``state()`` is a few numbers. A batch may end one epoch and begin the next.
    """

    def __init__(self, encoded: Encoded, batch: int, context: int, seed: int = 0) -> None:
        check_sizes(batch, context)
        self.encoded, self.batch, self.context, self.seed = encoded, batch, context, seed
        self._sizes = np.stack([side.sizes for side in encoded.sides], 1)
        self._key = encoded.key
        self._go(0, 0)

    def _go(self, epoch: int, index: int) -> None:
        self._epoch, self._index = epoch, index
        draw = np.random.default_rng([self.seed % 2**64, epoch])
        rows = pack(self._sizes, self.context, draw.permutation(len(self.encoded)))
        self._rows = [rows[place] for place in draw.permutation(len(rows))]

    def __next__(self) -> Batch:
        rows: list[Array] = []
        while len(rows) < self.batch:
            chunk = self._rows[self._index : self._index + self.batch - len(rows)]
            rows += chunk
            self._index += len(chunk)
            if self._index == len(self._rows):
                self._go(self._epoch + 1, 0)
        return batch_of(self.encoded, rows, self.context)

    @property
    def epoch(self) -> float:
        """Times the examples have been gone through."""
        return self._epoch + self._index / len(self._rows)

    @property
    def fill(self) -> float:
        """The share of this epoch's rows that holds a token."""
        return float(self._sizes.sum() / (len(self._rows) * self.context * self._sizes.shape[1]))

    def state(self) -> dict[str, Any]:
        """Returns the iterator's position as JSON values."""
        return {**self._identity(), "cursor": [self._epoch, self._index]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state()`` was taken; UserError when it is of other examples,
        context or seed."""
        check_same(state, self._identity())
        self._go(*state["cursor"])

    def _identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "context": self.context, "content": self._key}


def each_once(encoded: Encoded, batch: int, context: int) -> Iterator[Batch]:
    """The examples in their own order, each once; the last batch may have fewer rows."""
    check_sizes(batch, context)
    rows = in_order(np.stack([side.sizes for side in encoded.sides], 1), context)
    while batch_rows := list(itertools.islice(rows, batch)):
        yield batch_of(encoded, batch_rows, context)

"""Batches: documents packed end to end into rows, in an order that is a function of the seed alone.

    stream    d d d | e e e e e | f f f f f f ...      documents end to end, borders known
    targets   cut into stretches of `context`, from a new offset each epoch: each token is a target once (see `Batches`)
    rows      a stretch and the tokens before it, `context` long; the order of rows is a permutation by seed and epoch

Shapes: B rows of a batch, T context, N tokens of a corpus.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from .. import registry
from ..errors import UserError
from ..nn.flow import document_starts
from .shards import Shards

Array = np.ndarray[Any, Any]
LISTED, COMPUTED = 2, 3
"""Kinds of order; saved in checkpoints, since a resumed run must use the same one."""
IN_MEMORY = 1 << 24
"""Rows whose order is a list: 128 MiB."""


@dataclass(frozen=True)
class Batch:
    """Rows to learn from: ``tokens`` and ``targets`` (B, T) long, a target of -1 is not counted.

    ``pos`` and ``document_ids`` (B, T) say where in which of the row's documents a token is; both
    are None when no row holds more than one, and positions are then 0..T-1. Padding has position
    -1. ``source``, ``source_pos`` and ``source_document_ids`` (B, S) are what an encoder reads; a
    pair has the same document number on both sides. ``segments`` (B, T) tells two texts of one
    document apart, ``prefix`` (B, T) is true where all of the document may look. ``labels`` (D,),
    long or float, are the documents', in the order of rows, then of columns. ``host`` is the same
    batch in the host's memory where it was moved to a device: what is counted there does not wait
    for the device.
    """

    tokens: Tensor
    targets: Tensor
    pos: Tensor | None = None
    document_ids: Tensor | None = None
    source: Tensor | None = None
    source_pos: Tensor | None = None
    source_document_ids: Tensor | None = None
    segments: Tensor | None = None
    prefix: Tensor | None = None
    labels: Tensor | None = None
    host: Any = None  # a Batch

    def to(self, device: torch.device | str) -> Batch:
        moved = self._map_tensors(lambda name, tensor: tensor.to(device, non_blocking=True))
        return moved if moved.tokens.is_cpu or not self.tokens.is_cpu else replace(moved, host=self)

    def target_indices(self, step: int = 1) -> Tensor:
        """Indices of the targets among the flattened tokens (N,), N padded to a multiple of ``step``
        with indices that have no target."""
        has_target = (self.host or self).targets.flatten() >= 0
        indices = has_target.nonzero()[:, 0]
        if missing := -len(indices) % step:
            indices = torch.cat((indices, (~has_target).nonzero()[:missing, 0]))
        return indices.to(self.tokens.device, non_blocking=True)

    def pinned(self) -> Batch:
        return self._map_tensors(lambda name, tensor: tensor.pin_memory())

    def rows(self, low: int, high: int) -> Batch:
        """The rows from ``low`` to before ``high``, with the labels of the documents in them."""
        if self.labels is None:
            return self._map_tensors(lambda name, tensor: tensor[low:high])
        alone = self.tokens.new_ones(len(self.tokens))
        documents_per_row = (
            alone if self.pos is None else document_starts(self.pos).sum(1)
        )  # documents a row
        first, last = int(documents_per_row[:low].sum()), int(documents_per_row[:high].sum())
        return self._map_tensors(
            lambda name, tensor: tensor[first:last] if name == "labels" else tensor[low:high]
        )

    def _map_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Batch:
        tensors = {
            name: tensor for name, tensor in vars(self).items() if isinstance(tensor, Tensor)
        }
        return replace(
            self, host=None, **{name: change(name, tensor) for name, tensor in tensors.items()}
        )


class CorpusRows:
    """A corpus as rows of ``context`` tokens and their targets."""

    def __init__(self, shards: Shards, context: int) -> None:
        self.shards, self.context = shards, context
        self.last = len(shards) - 1  # tokens that have a successor
        self.windows = sliding_window_view(np.asarray(shards.tokens), context)
        # a closing token that also opens the next document is the last one's target and the next
        # one's first
        self.shared = shards.shared_border
        # mapped: not a number of them is copied
        self.borders, self.base = shards.borders, shards.first + self.shared

    def packed(self, low: Array, high: Array) -> bool:
        """True if a row of ``load`` holds more than one document; no token is read for it."""
        starts = np.maximum(high - self.context, 0) + self.base
        borders_before_end = np.searchsorted(self.borders, starts + self.context - 1, side="right")
        return bool(
            (borders_before_end > np.searchsorted(self.borders, starts, side="right")).any()
        )

    def load(self, low: Array, high: Array) -> tuple[Array, Array, Array]:
        """The rows that predict the successors of tokens low..high-1 (each R long).

        Tokens, targets and whether a token opens a document inside its row, each (R, T).
        """
        # a file that was cut: to read it there would end the process (SIGBUS)
        if any(mapped.size() < len(mapped) for mapped in self.shards.corpus.maps):
            self.shards.check()
        T, rows = self.context, len(low)
        starts = np.maximum(high - T, 0)
        tokens, targets = (self.windows[first].astype(np.int64) for first in (starts, starts + 1))
        opens = np.zeros((rows, T), np.bool_)
        if (high - low < T).any():
            place = starts[:, None] + np.arange(T)
            targets[(place < low[:, None]) | (place >= high[:, None])] = -1
        first = np.searchsorted(self.borders, starts + self.base, side="right")
        count = np.searchsorted(self.borders, starts + self.base + T, side="right") - first
        if count.any():
            # every border in a row, one after another: nth counts it among all borders, column is
            # its place in the row
            row = np.repeat(np.arange(rows), count)
            nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
            column = self.borders[nth] - self.base - starts[row]
            if not self.shared:
                targets[row, column - 1] = -1  # the next document cannot be told from this one
            inside = column < T
            opens[row[inside], column[inside]] = True
        return tokens, targets, opens


RowBounds = tuple[CorpusRows, Array, Array]
"""Bounds of rows that are drawn and not yet loaded: the arguments of ``CorpusRows.load``."""


def as_batch(loaded_rows: Iterable[tuple[Array, Array, Array]], packed: bool = False) -> Batch:
    """A batch of what ``CorpusRows.load`` gave; ``packed``: a piece of one with borders."""
    tokens, targets, opens = (np.concatenate(arrays) for arrays in zip(*loaded_rows, strict=True))
    columns = [tokens, targets]
    if packed or opens.any():
        place = np.arange(opens.shape[1])
        pos = place - np.maximum.accumulate(np.where(opens, place, 0), axis=1)
        columns += [pos, np.cumsum(opens, axis=1, dtype=np.int64)]
    return Batch(*map(torch.from_numpy, columns))


def order_of(size: int, seed: np.random.SeedSequence, kind: int) -> Any:
    """A random order of 0 to size - 1; ``order[low:high]`` are places of rows in the corpus."""
    if kind == LISTED:  # RandomState's stream is the same in all versions of NumPy; 8 bytes a row
        return np.random.RandomState(np.random.PCG64(seed)).permutation(size)
    (room,) = registry.load("orders")  # scale/order.py
    return room.ComputedOrder(size, seed)


class _Cursor:
    """Position in one corpus: row ``index`` of ``epoch``, ``drawn`` rows in all."""

    def __init__(self, rows: CorpusRows, seed: Sequence[int], order_kind: int) -> None:
        self.rows, self.seed = rows, seed
        self.drawn = 0
        self.go(0, 0, order_kind)

    def go(self, epoch: int, index: int, order_kind: int) -> None:
        self.epoch, self.index, self.order_kind = epoch, index, order_kind
        order, offset = np.random.SeedSequence([*self.seed, epoch]).spawn(2)
        T, last = self.rows.context, self.rows.last
        # the first stretch is this short, so that borders differ between epochs
        self.offset = 1 + int(offset.generate_state(1, np.uint64)[0]) % T
        self.size = 1 + -(-(last - self.offset) // T)
        self.order = order_of(self.size, order, order_kind)

    def draw(self, count: int) -> Iterator[RowBounds]:
        """The next ``count`` rows, from this epoch and the ones after it."""
        self.drawn += count
        while count:
            chunk_size = min(count, self.size - self.index)
            places = self.order[self.index : self.index + chunk_size]
            high = places * self.rows.context + self.offset
            yield (
                self.rows,
                np.maximum(high - self.rows.context, 0),
                np.minimum(high, self.rows.last),
            )
            count, self.index = count - chunk_size, self.index + chunk_size
            if self.index == self.size:
                self.go(self.epoch + 1, 0, self.order_kind)


class Batches(Iterator[Batch]):
    """An endless iterator of training batches over one corpus, or several mixed by weight.

    Each epoch every token that has a predecessor in its document is a target exactly once, in a new
    order with new row borders. A mixture's weights are shares of the rows, kept to within one row at
    any time. Which rows come is a function of (seed, epoch, index) alone, so ``state()`` is a few
    numbers. Raises UserError for a corpus shorter than one context.
    """

    def __init__(
        self,
        shards: Shards | Sequence[tuple[Shards, float]],
        batch: int,
        context: int,
        seed: int = 0,
    ) -> None:
        check_sizes(batch, context)
        mixture = [(shards, 1.0)] if isinstance(shards, Shards) else list(shards)
        for corpus, weight in mixture:
            if not (math.isfinite(weight) and weight > 0):
                raise UserError(f"The weight of {corpus.name} is {weight}; give a number above 0.")
            if len(corpus) <= context:
                sentence = (
                    f"{corpus.name} holds {len(corpus)} tokens, too few for one context of "
                    f"{context} and the next; "
                )
                raise UserError(sentence + "give more text or set a smaller context.")
        if not mixture:
            raise UserError("There is no corpus to train on; give at least one.")
        self.batch, self.context, self.seed = batch, context, seed
        total = sum(weight for _, weight in mixture)
        self.weights = [weight / total for _, weight in mixture]
        self.keys = [corpus.key for corpus, _ in mixture]
        rows = [CorpusRows(corpus, context) for corpus, _ in mixture]
        longest = max(corpus_rows.last // context for corpus_rows in rows)
        self._order_kind = LISTED if longest <= IN_MEMORY else COMPUTED
        self._cursors = [
            _Cursor(corpus_rows, (seed % 2**64, number), self._order_kind)
            for number, corpus_rows in enumerate(rows)
        ]

    def __next__(self) -> Batch:
        return as_batch(rows.load(low, high) for rows, low, high in self.draw())

    def draw(self) -> Iterator[RowBounds]:
        for cursor, count in zip(self._cursors, self._shares(), strict=True):
            yield from cursor.draw(count)

    def _shares(self) -> list[int]:
        """Rows of the next batch from each corpus: one by one to whichever lags its weight most."""
        if len(self._cursors) == 1:
            return [self.batch]
        drawn = [cursor.drawn for cursor in self._cursors]
        shares = [0] * len(drawn)
        for total in range(sum(drawn) + 1, sum(drawn) + self.batch + 1):
            lag = [w * total - d - s for w, d, s in zip(self.weights, drawn, shares, strict=True)]
            shares[lag.index(max(lag))] += 1
        return shares

    @property
    def epoch(self) -> float:
        return max(cursor.epoch + cursor.index / cursor.size for cursor in self._cursors)

    @property
    def bytes(self) -> int:
        return sum(
            cursor.rows.windows.itemsize * (cursor.rows.last + 1) for cursor in self._cursors
        )

    def state(self) -> dict[str, Any]:
        cursors = [[cursor.epoch, cursor.index, cursor.drawn] for cursor in self._cursors]
        return {**self._identity(), "order": self._order_kind, "cursors": cursors}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state()`` was taken; UserError when it is of other data or settings."""
        if state.get("order") not in (LISTED, COMPUTED):
            raise UserError(
                "This run was begun by another version of Glassformer, which reads the data in "
                "another order; continue it with that version, or begin a new run from its weights."
            )
        check_same(state, self._identity())
        self._order_kind = state["order"]
        for cursor, (epoch, index, drawn) in zip(self._cursors, state["cursors"], strict=True):
            cursor.go(epoch, index, self._order_kind)
            cursor.drawn = drawn

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "context": self.context,
            "weights": self.weights,
            "content": self.keys,
        }


def micro_batch_borders(rows: int, count: int) -> list[tuple[int, int]]:
    """The first row of each micro-batch of so many rows, and the row after its last."""
    size, more = divmod(rows, count)
    return list(itertools.pairwise(at * size + min(at, more) for at in range(count + 1)))


def check_same(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """UserError unless a state has all that ``identity`` has."""
    for name, expected in identity.items():
        if state.get(name) != expected:
            sentence = f"The checkpoint was made with another {name} of the training data"
            raise UserError(
                f"{sentence} ({state.get(name)}, now {expected}); continue with the same "
                "data and settings."
            )


def check_sizes(batch: int, context: int) -> None:
    for name, number in (("batch", batch), ("context", context)):
        if number < 1:
            raise UserError(f"{name} is {number}; give an integer above 0.")

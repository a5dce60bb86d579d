"""Batches as a process reads them: its own micro-batches alone, and ahead in a thread, so that the disk
is waited for while the model computes. No bit is another."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ..core.memory import available_memory
from ..core.training.batches import Batch, Batches, RowBounds, as_batch, micro_batch_borders


def next_micro_batches(batches: Iterator[Batch], count: int, indices: Iterable[int]) -> list[Batch]:
    """Micro-batches ``indices`` of the ``count`` that the next batch is cut into, with the bits that they
    have in the whole batch.

    Every process calls it with the same ``batches`` and ``count``, so that all cursors stay alike.
    Running text is read for these alone; what an objective prepares is a function of the
    whole batch, so that is made and cut.
    """
    if not isinstance(batches, Batches):
        batch = next(batches)
        cuts = micro_batch_borders(len(batch.tokens), count)
        return [batch.rows(*cuts[number]) for number in indices]
    drawn = list(batches.draw())
    cuts = micro_batch_borders(batches.batch, count)
    packed = any(rows.packed(low, high) for rows, low, high in drawn)
    return [
        as_batch((rows.load(*bounds) for rows, *bounds in _between(drawn, *cuts[number])), packed)
        for number in indices
    ]


def _between(drawn: Iterable[RowBounds], low: int, high: int) -> Iterator[RowBounds]:
    """Rows number ``low`` to ``high`` - 1 of those that are drawn."""
    start = 0
    for rows, *bounds in drawn:
        overlap = slice(max(low - start, 0), max(high - start, 0))
        start += len(bounds[0])
        if len(bounds[0][overlap]):
            yield rows, bounds[0][overlap], bounds[1][overlap]


class Prefetched(Iterator[Any]):
    """Results of ``draw`` over ``batches``, prefetched ``depth`` ahead; or ``micro_batches`` of them, then
    always the same ones.

    ``state()`` and ``epoch`` are those of the batch that was handed out last, so that a run goes on
    from there. What ``draw`` raises is raised in its turn. With ``pin`` the batches lie in memory
    that a GPU copies from by itself.
    """

    def __init__(
        self, batches: Any, depth: int = 2, draw: Callable[[Any], Any] = next, pin: bool = False
    ) -> None:
        self.batches, self.depth, self.draw, self.pin = batches, depth, draw, pin
        self._thread = ThreadPoolExecutor(1, "batches")  # one: batches are drawn in order
        self._ahead: collections.deque[Future[Any]] = collections.deque()
        self._state, self.epoch = batches.state(), batches.epoch

    def __next__(self) -> Any:
        return self._next(self.draw)

    def micro_batches(self, count: int, indices: Iterable[int]) -> list[Batch]:
        """Returns ``next_micro_batches`` of ``batches``, prefetched."""
        drawn: list[Batch] = self._next(
            functools.partial(next_micro_batches, count=count, indices=indices)
        )
        return drawn

    def _next(self, draw: Callable[[Any], Any]) -> Any:
        while len(self._ahead) <= self.depth:
            self._ahead.append(self._thread.submit(self._draw_next, draw))
        drawn, self._state, self.epoch = self._ahead.popleft().result()
        return drawn

    def _draw_next(self, draw: Callable[[Any], Any]) -> Any:
        drawn = draw(self.batches)
        if self.pin:
            drawn = (
                [batch.pinned() for batch in drawn] if isinstance(drawn, list) else drawn.pinned()
            )
        return drawn, self.batches.state(), self.batches.epoch

    def state(self) -> dict[str, Any]:
        """Returns the position after the last batch handed out, as JSON values."""
        state: dict[str, Any] = self._state
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state()`` was taken; what was read ahead is dropped."""
        while self._ahead:
            future = self._ahead.pop()  # the newest first: what has not begun never does
            if not future.cancel():
                future.exception()  # waits
        self.batches.restore(state)
        self._state, self.epoch = self.batches.state(), self.batches.epoch


def read_ahead(batches: Any, device: torch.device) -> Any:
    """``batches`` prefetched where that pays: for a GPU, and from a corpus that this machine's
    memory cannot hold."""
    free = available_memory(torch.device("cpu"))
    cold = free is not None and getattr(batches, "bytes", 0) > free
    return (
        Prefetched(batches, pin=device.type == "cuda") if device.type != "cpu" or cold else batches
    )

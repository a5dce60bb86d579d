"""The optimizer of a model in shards: each process updates its numbers, in windows; matrices of Muon
go to their owners."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.config import run
from ..core.training.optimizer import (
    Optimizer,
    orthogonal,
    squares,
    stack_indices,
    stack_numel,
    update_rate,
    wide,
)
from .collectives import summed
from .mesh import Mesh
from .owners import Owners
from .place import BoxShare, TensorBox
from .shard import windows
from .windows import WeightWindow


class ShardedOptimizer(Optimizer):
    """An optimizer whose ``parameters`` are windows on this process's numbers."""

    def __init__(self, model: nn.Module, settings: run.Optimizer, mesh: Mesh) -> None:
        self.mesh, self.windows = mesh, windows(model, mesh)
        self.owners: dict[tuple[str, ...], Owners] = {}
        super().__init__(model, settings)

    def tensors(self) -> dict[str, Tensor]:
        return {name: window.tensor for name, window in self.windows.items()}

    def gradients(self) -> dict[str, Tensor]:
        for window in self.windows.values():
            window.pull()
        return super().gradients()

    def norm(self, grads: Mapping[str, Tensor]) -> float:
        """The norm of the whole gradient: squares are added up in fp64 row by row, then all rows in
        one order.

        Those of what an axis cuts are added over it last.
        """
        totals = defaultdict[str | None, list[Tensor]](list)  # by the axis that cuts them
        for name, grad in grads.items():
            window = self.windows[name]
            rows = torch.zeros(window.size // window.width, dtype=torch.float64)
            rows[window.low // window.width : window.high // window.width] = squares(
                window.local_part(grad), window.width
            ).cpu()
            totals[None if window.cut is None else window.cut.axis].append(rows)
        square = 0.0
        for axis, rows_of_axis in totals.items():
            row_squares = torch.cat(rows_of_axis)
            with self.mesh.watched():
                if self.mesh.extent("data") > 1:
                    # each row is one process's and 0 elsewhere, so that the order does not matter
                    torch.distributed.all_reduce(row_squares, group=self.mesh.group("data"))
                square += float(
                    row_squares.sum()
                    if axis is None
                    else summed(row_squares.sum(), self.mesh.group(axis))
                )
        return math.sqrt(square)

    def step(self, factor: float) -> None:
        super().step(factor)
        for window in self.windows.values():
            window.push()

    def clear(self) -> None:
        super().clear()
        for window in self.windows.values():
            window.weight.grad = None

    def place(self, key: str) -> TensorBox | None:
        name, _, state_name = key.rpartition(":")
        window = None if state_name == "step" else self.windows.get(name)
        return None if window is None else window.place

    def state(self) -> dict[str, Any]:
        """Moments as ``BoxShare``s."""
        return {
            key: value if self.place(key) is None else self._window(key).share(value)
            for key, value in super().state().items()
        }

    def restore(self, tensors: Mapping[str, Any]) -> None:
        local = {
            key: self._window(key).widened(value.numbers.reshape(-1))
            if isinstance(value, BoxShare)
            else value
            for key, value in tensors.items()
        }
        super().restore(local)
        for window in self.windows.values():  # the weights were put in place before
            window.refresh()

    def _window(self, key: str) -> WeightWindow:
        return self.windows[key.rpartition(":")[0]]

    def move(self, group: dict[str, Any], ahead: Sequence[Tensor]) -> None:
        """The same as ``move_matrices`` where each process has its numbers of the weights: their
        owners do the products."""
        moved = tuple(
            n for n, p in zip(group["paths"], group["params"], strict=True) if p.grad is not None
        )
        if moved not in self.owners:
            moved_windows = [self.windows[name] for name in moved]
            max_numel = stack_numel([window.tensor for window in moved_windows])
            alike = functools.partial(stack_indices, max_numel=max_numel)
            self.owners[moved] = Owners(self.mesh, moved_windows, alike)
        directions = self.owners[moved].orthogonal(ahead, _orthogonal)
        self.owners[moved].add(
            directions, lambda rows, columns: update_rate(group["lr"], max(rows, columns))
        )


def _orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """An update for each matrix of a stack, wide or tall."""
    updates = orthogonal(torch.stack([wide(matrix).bfloat16() for matrix in matrices]))
    tall = (matrix.shape[0] > matrix.shape[1] for matrix in matrices)
    return [update.mT if turn else update for update, turn in zip(updates, tall, strict=True)]

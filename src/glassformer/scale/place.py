"""The place of this process's numbers in a whole tensor: a box of it, cut by an axis
(``Cut``) and by shards.

whole (R, C)       tensor cuts columns, data cuts rows       this process's box
. . . . . .        . . . | . . .                             . . .
. . . . . .        ------+------                             . . .
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from .collectives import summed
from .mesh import Mesh, share
from .parallel import AXES


@dataclass(frozen=True)
class Cut:
    """A parameter of which this process has ``low`` to before ``high`` of ``size`` along ``dim``,
    by an ``axis``."""

    axis: str
    dim: int
    low: int
    high: int
    size: int

    def of(self, x: Tensor) -> Tensor:
        """This process's part of the whole."""
        return x.narrow(self.dim, self.low, self.high - self.low)

    def gather(self, x: Tensor, group: ProcessGroup) -> Tensor:
        """The whole of which each process has a part; no gradient."""
        filled = x.new_zeros(
            [self.size if dim == self.dim else size for dim, size in enumerate(x.shape)]
        )
        self.of(filled).copy_(x)
        return summed(filled, group)


@dataclass(frozen=True)
class TensorBox:
    """A box of a tensor of this ``shape``: ``size`` numbers a side, from ``start`` on; other
    processes along ``axes`` have other boxes, those along other axes the same."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]
    axes: tuple[str, ...]

    def is_written_by(self, mesh: Mesh) -> bool:
        """True on the one process, of those that have this box, that writes it."""
        return not any(mesh.index(axis) for axis in AXES if axis not in self.axes)

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first, count) of its numbers that lie together in the whole's flat order, one run after
        another."""
        last = max(
            [dim for dim in range(len(self.shape)) if self.size[dim] < self.shape[dim]], default=0
        )
        inside = math.prod(self.shape[last + 1 :])
        sides = (
            range(low, low + size)
            for low, size in zip(self.start[:last], self.size[:last], strict=True)
        )
        for at in itertools.product(*sides):
            flat = 0
            for place, size in zip((*at, self.start[last]), self.shape, strict=False):
                flat = flat * size + place
            yield flat * inside, self.size[last] * inside


@dataclass(frozen=True)
class BoxShare:
    """The ``numbers`` (of its sides) of a place."""

    place: TensorBox
    numbers: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the full tensor."""
        return self.place.shape

    def detach(self) -> BoxShare:
        """Itself, as of a tensor: it has no graph."""
        return self


def place_of(shape: tuple[int, ...], mesh: Mesh, cut: Cut | None = None) -> TensorBox:
    """The box of this process where a tensor, or its part of this ``shape`` by a ``cut``, is in
    shards."""
    low, high = share(shape[0], mesh.extent("data"), mesh.index("data"))
    start = [low, *[0] * (len(shape) - 1)]
    size = (high - low, *shape[1:])
    full_shape = list(shape)
    if cut is not None:
        start[cut.dim] += cut.low
        full_shape[cut.dim] = cut.size
    return TensorBox(
        tuple(full_shape), tuple(start), size, ("data",) if cut is None else ("data", cut.axis)
    )


def share_of(tensor: Any, mesh: Mesh, cut: Cut | None = None) -> BoxShare | None:
    """This process's numbers of a DTensor; None of a plain tensor."""
    if not hasattr(tensor, "placements"):
        return None
    return BoxShare(place_of(tuple(tensor.shape), mesh, cut), tensor.to_local().detach())

"""A shard's numbers as one process's kernels would meet them, and their norm, summed in one
order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .mesh import Mesh
from .place import BoxShare, Cut, place_of

GRID = 64
"""Numbers that a vector loop of a kernel takes at most; those left over at a tensor's end are
rounded otherwise."""


class WeightWindow:
    """This process's numbers of a weight, as the optimizer's kernels see them: ``tensor`` is flat,
    and begins at a multiple of ``GRID`` in the weight's order (of the part that a ``cut`` left
    here).

    Of ``size`` numbers in all ``low`` to before ``high`` are ours; a row has ``width``. Where they
    begin or end between two multiples, the tensor is a copy with zeros around them.
    """

    def __init__(self, weight: Any, mesh: Mesh, cut: Cut | None = None) -> None:
        self.weight, self.shape, self.size, self.cut = (
            weight,
            tuple(weight.shape),
            weight.numel(),
            cut,
        )
        self.place = place_of(self.shape, mesh, cut)
        inside = self.size // max(1, self.shape[0])
        first = self.place.start[0] - (cut.low if cut is not None and cut.dim == 0 else 0)
        self.low = first * inside
        self.high = (first + self.place.size[0]) * inside
        self.begin = self.low - self.low % GRID
        self.end = (
            min(self.size, -(-self.high // GRID) * GRID) if self.high > self.low else self.begin
        )
        self.fits = (self.begin, self.end) == (self.low, self.high)
        self.tensor = self.widened(self.local(weight))

    @staticmethod
    def local(tensor: Any) -> Tensor:
        return tensor.to_local().detach().reshape(-1)  # type: ignore[no-any-return]

    def widened(self, local: Tensor) -> Tensor:
        """Our flat numbers in a window: the same memory where they fill it."""
        if self.fits:
            return local
        wide = local.new_zeros(self.end - self.begin)
        wide[self.low - self.begin : self.high - self.begin] = local
        return wide

    def local_part(self, wide: Tensor) -> Tensor:
        if self.fits:
            return wide
        return wide[self.low - self.begin : self.high - self.begin]

    def share(self, wide: Tensor) -> BoxShare:
        """Our numbers out of a window, with the place that they have in the whole."""
        return BoxShare(self.place, self.local_part(wide).view(self.place.size))

    def pull(self) -> None:
        """Take up the gradient that backward left on the weight."""
        grad = self.weight.grad
        self.tensor.grad = None if grad is None else self.widened(self.local(grad))
        if self.cut is not None and self.cut.low == self.cut.high:
            # another stage's: its steps are counted everywhere
            self.tensor.grad = torch.zeros_like(self.tensor)

    @torch.no_grad()
    def push(self) -> None:
        """Give the weight the numbers that the optimizer made."""
        if not self.fits:
            self.local(self.weight).copy_(self.local_part(self.tensor))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take up the weight's numbers where it was written to by another."""
        self.local_part(self.tensor).copy_(self.local(self.weight))

    @property
    def width(self) -> int:
        return self.shape[-1] if len(self.shape) > 1 else 1

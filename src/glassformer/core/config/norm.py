"""Norms of a vector. No torch here."""

from __future__ import annotations

from typing import TypeAlias

from .serial import PositiveFloat, frozen
from .shapes import Shapes, join


@frozen
class LayerNorm:
    """Centre and scale each vector (Ba et al. 2016)."""

    eps: PositiveFloat = 1e-5  # added to the variance
    bias: bool = True  # shift as well as scale

    def shapes(self, dim: int) -> Shapes:
        return join(weight=(dim,), bias=(dim,) if self.bias else ())


@frozen
class RMSNorm:
    """Scale each vector to unit root mean square (Zhang & Sennrich 2019).

    The gain is ``offset + weight``: 0 for Llama, 1 for Gemma. ``gain=False`` leaves the weight out.
    """

    eps: PositiveFloat = 1e-5  # added to the mean square
    offset: float = 0.0  # what the gain is beside the weight
    gain: bool = True  # scale by a weight as well

    def shapes(self, dim: int) -> Shapes:
        return join(weight=(dim,) if self.gain else ())


Norm: TypeAlias = LayerNorm | RMSNorm

"""The one place where a linear layer is chosen."""

from __future__ import annotations

from .packed import Linear


def linear(inputs: int, outputs: int, bias: bool) -> Linear:
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs)."""
    return Linear(inputs, outputs, bias=bias)

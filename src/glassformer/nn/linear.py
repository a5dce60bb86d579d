"""The one place where a linear layer is chosen."""

from __future__ import annotations

from torch import nn


def linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs)."""
    return nn.Linear(inputs, outputs, bias=bias)

"""The one place where a linear layer is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Linear(nn.Linear):
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs), and ``config.Init`` draws it.

    A class of its own, so that others can take its place: low-rank changes (lora.py), prepacked weights (prepacked.py).
    """

    def reset_parameters(self) -> None:
        """Nothing: drawing twice would take time."""

    @property
    def prepackable(self) -> bool:
        """Whether it makes no more of x than W and b do, so that a copy of them may take its place."""
        return type(self).forward is nn.Linear.forward

    def matrix(self) -> Tensor:
        """What x is multiplied with (N, C), any change in it: for a kernel that takes weights, not layers."""
        return self.weight

    def joint(self, x: Tensor, layers: Sequence[Linear]) -> Sequence[Tensor]:
        """What each of ``layers`` makes of the same x; this one is the first of them."""
        return [layer(x) for layer in layers]


def linear(inputs: int, outputs: int, bias: bool) -> Linear:
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs)."""
    return Linear(inputs, outputs, bias=bias)


def together(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """What each of the layers makes of the same x (..., C): (..., N) each, in one product where they allow it."""
    return layers[0].joint(x, layers)

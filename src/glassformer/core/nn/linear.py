"""The one place where a linear layer is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Linear(nn.Linear):
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs), and ``config.Init`` draws it.

    A class of its own, so that others can take its place: low-rank changes (lora.py), prepacked
    weights (prepacked.py).
    """

    products = ("weight",)

    def reset_parameters(self) -> None:
        """Nothing: drawing twice would take time."""

    @property
    def prepackable(self) -> bool:
        """True where the forward pass is exactly nn.Linear's (no LoRA), so that a prepacked copy
        may take its place."""
        return type(self).forward is nn.Linear.forward

    def matrix(self) -> Tensor:
        """The effective weight (N, C), a low-rank change added: for kernels that take a matrix, not
        a layer."""
        return self.weight

    def joint(self, x: Tensor, layers: Sequence[Linear]) -> Sequence[Tensor]:
        """The outputs of ``layers``, of which this is the first, on one input x; prepacked weights
        fuse them."""
        return [layer(x) for layer in layers]


def linear(inputs: int, outputs: int, bias: bool) -> Linear:
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs)."""
    return Linear(inputs, outputs, bias=bias)


def fused_linear(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """[layer(x) for layer in layers], x (..., C) -> (..., N) each; one fused product where weights
    are prepacked."""
    return layers[0].joint(x, layers)

"""An expert for every token that the token itself turns up or down (Qwen 2 MoE). No torch here."""

from __future__ import annotations

from ..core.config.layers import MLP, GatedMLP, Shapes, join, linear
from ..core.config.serial import member
from ..core.errors import need


@member(MLP | GatedMLP)
class GatedExpert(GatedMLP):
    """A gated MLP times sigmoid(share(x)), one number a token: an expert in ``MoE.shared``."""

    def __post_init__(self) -> None:
        need(not self.bias, "GatedExpert has no biases; set bias = false.")

    def shapes(self, dim: int) -> Shapes:
        return GatedMLP.shapes(self, dim) | join(share=linear(dim, 1, False))

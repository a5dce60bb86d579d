"""Linear layers with a low-rank change beside a frozen matrix.

R rank, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import need
from .layers import Linear
from .replace import is_packed


class LoRALinear(Linear):
    """W x + scale * up (down (drop (x))), W frozen (Hu et al. 2021); ``up`` starts at zero.

    ``down`` and ``up`` are PEFT's ``lora_A`` and ``lora_B``.
    """

    def __init__(self, of: nn.Linear, rank: int, scale: float, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = of.in_features, of.out_features, scale
        self.weight, self.bias = of.weight, of.bias
        options: Any = {"dtype": of.weight.dtype, "device": of.weight.device}
        self.down = nn.Parameter(torch.zeros(rank, of.in_features, **options))  # (R, I)
        self.up = nn.Parameter(torch.zeros(of.out_features, rank, **options))  # (O, R)
        self.drop = nn.Dropout(dropout)
        self.original: Tensor | None = None  # W as it was, while the change is in it

    @property
    def mergeable(self) -> bool:
        """True unless W is quantized: a weight of few bits would lose most of the change."""
        return not is_packed(self.weight)

    @property
    def prepackable(self) -> bool:
        return self.original is not None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return (
            y + self.scale * F.linear(F.linear(self.drop(x), self.down), self.up)
            if self.original is None
            else y
        )

    def matrix(self) -> Tensor:
        """W with the change in it, through which gradients reach the change; without dropout."""
        return (
            self.weight + self.scale * (self.up @ self.down)
            if self.original is None
            else self.weight
        )

    def merged_weight(self) -> Tensor:
        """W with the change in it (O, I)."""
        if self.original is not None:
            return self.weight.detach()
        return self.add_change(self.weight.detach(), self.down.detach(), self.up.detach())

    def add_change(self, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """A matrix (O, I) with such a change in it."""
        wide = torch.promote_types(weight.dtype, torch.float32)
        update = self.scale * (up.to(wide) @ down.to(wide))
        return (weight.to(wide) + update).to(weight.dtype)

    @torch.no_grad()
    def merge(self) -> None:
        """Put the change into W; W as it was is kept. UserError where W is quantized."""
        need(
            self.mergeable,
            "An adapter cannot be merged into a quantized weight; keep the adapter separate.",
        )
        if self.original is None:
            merged_weight = self.merged_weight()
            self.original = self.weight.detach().clone()
            self.weight.copy_(merged_weight)

    @torch.no_grad()
    def unmerge(self) -> None:
        """W as it was, bit for bit, and the change beside it again."""
        if self.original is not None:
            self.weight.copy_(self.original)
            self.original = None


def adapted(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers of a model that have a change beside them or in them, by path."""
    return {
        path: module for path, module in model.named_modules() if isinstance(module, LoRALinear)
    }


def weights(
    model: nn.Module, gather: Callable[[Tensor], Tensor] = Tensor.detach
) -> dict[str, Tensor]:
    """Every weight of the model as if it had never been adapted: changes are in their matrices.
    ``gather`` makes a whole tensor of a weight."""
    result = {name: gather(weight) for name, weight in model.named_parameters()}
    for path, layer in adapted(model).items():
        change = result.pop(f"{path}.down"), result.pop(f"{path}.up")
        if layer.original is None:
            result[f"{path}.weight"] = layer.add_change(result[f"{path}.weight"], *change)
    return result

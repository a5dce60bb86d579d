"""Dropout that spends sixteen random bits on a number (Srivastava et al. 2014).

On a CPU PyTorch draws a whole random number for each, which in a small model takes longer than the
products do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 1 << 16  # in which a rate is counted


def keep_mask(x: Tensor, rate: float, heads: Any = None) -> Tensor:
    """Booleans in the shape of ``x``, false for a share of ``rate``; by its device's generator.

    ``heads`` says which ones x (B, H, ..) are, where they are not all (scale/tensor.py).
    """
    if heads is not None:
        drawn: Tensor = heads.draw_shard(x, lambda full: keep_mask(full, rate))
        return drawn
    # all of int64, so that each of its four int16 is uniform from -STEPS / 2 on: hence the shifted
    # threshold
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(
        -(2**63), None
    )
    return bits.view(torch.int16)[: x.numel()].view(x.shape) >= round(rate * STEPS) - STEPS // 2


def dropout(x: Tensor, rate: float, heads: Any = None) -> Tensor:
    """``x`` with a share of ``rate`` set to 0, the others divided by 1 - rate."""
    if heads is not None:
        return x * keep_mask(x, rate, heads) / (1 - rate)
    if not x.is_cpu or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    dropped: Tensor = _Dropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


class Dropout(nn.Module):
    """``dropout`` while training, nothing otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x


class _Dropout(torch.autograd.Function):
    """Dropout whose backward pass needs one byte a number: the mask of what is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        alive = keep_mask(x, rate)
        ctx.save_for_backward(alive)
        ctx.factor = 1 / (1 - rate)
        return (x * alive).mul_(ctx.factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (alive,) = ctx.saved_tensors
        return (grad * alive).mul_(ctx.factor), None

"""Normalisation of each vector (.., C)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from .build import build, builds


def norm(cfg: config.Norm | None, dim: int) -> nn.Module:
    """The norm that a config asks for; None leaves vectors as they are."""
    module: nn.Module = nn.Identity() if cfg is None else build(cfg, dim)
    return module


@builds(config.LayerNorm)
class LayerNorm(nn.LayerNorm):
    """Subtract the mean, divide by the deviation, scale and shift (Ba et al. 2016)."""

    def __init__(self, cfg: config.LayerNorm, dim: int) -> None:
        super().__init__(dim, cfg.eps, bias=cfg.bias)


@builds(config.RMSNorm)
class RMSNorm(nn.Module):
    """Divide by the root mean square and scale (Zhang & Sennrich 2019); the gain is ``offset +
    weight``."""

    def __init__(self, cfg: config.RMSNorm, dim: int) -> None:
        super().__init__()
        self.eps, self.offset, self.shape = cfg.eps, cfg.offset, (dim,)
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - cfg.offset)) if cfg.gain else None

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight
        if gain is not None and self.offset:
            gain = gain + self.offset  # type: ignore[assignment]
        if x.requires_grad and x.device.type == "cpu" and not torch.compiler.is_compiling():
            unit: Tensor = _Unit.apply(x, self.eps)  # type: ignore[no-untyped-call]
            return unit if gain is None else torch.mul(unit, gain.to(x.dtype))
        return F.rms_norm(x, self.shape, None if gain is None else gain.to(x.dtype), self.eps)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """A gain of 1, offset included."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.offset)


class _Unit(torch.autograd.Function):
    """x / rms(x) with its gradient by hand: PyTorch's CPU one is put together from a dozen small
    operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        # in x's precision: one pass over x
        scale = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit: Tensor = x * scale
        ctx.save_for_backward(unit, scale)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        unit, scale = ctx.saved_tensors
        along = (grad * unit).mean(-1, keepdim=True)  # what would only change the length
        return torch.addcmul(grad, unit, along, value=-1).mul_(scale), None

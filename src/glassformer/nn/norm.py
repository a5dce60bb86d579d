"""Normalisation of each vector on the stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from .build import builds


@builds(config.LayerNorm)
class LayerNorm(nn.Module):
    """Subtract the mean, divide by the deviation, scale and shift (Ba et al. 2016)."""

    def __init__(self, cfg: config.LayerNorm, dim: int) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if cfg.bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def reset(self) -> None:
        """Start as plain standardisation."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


@builds(config.RMSNorm)
class RMSNorm(nn.Module):
    """Divide by the root mean square and scale (Zhang & Sennrich 2019); the gain is ``offset + weight``."""

    def __init__(self, cfg: config.RMSNorm, dim: int) -> None:
        super().__init__()
        self.eps, self.offset, self.shape = cfg.eps, cfg.offset, (dim,)
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - cfg.offset)) if cfg.gain else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return F.rms_norm(x, self.shape, None, self.eps)
        gain = self.weight + self.offset if self.offset else self.weight
        return F.rms_norm(x, self.shape, gain.to(x.dtype), self.eps)  # under autocast, x may be bf16

    def reset(self) -> None:
        """Start with a gain of one."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.offset)

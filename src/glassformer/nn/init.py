"""How weights start."""

from __future__ import annotations

import math

import torch
from torch import nn

from .. import config
from .norm import LayerNorm, RMSNorm
from .position import Position

WRITES = ("out.weight", "down.weight", "ffn.down")  # the matrices that write to the residual stream


def initialise(model: nn.Module, cfg: config.Model, seed: int | None = None) -> None:
    """Draw every parameter as ``cfg.init`` says; the same seed gives the same weights."""
    init = cfg.init
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    writes = sum(stack.depth * (3 if stack.pattern[0].cross else 2) for stack in config.stacks(cfg).values())
    for path, weight in model.named_parameters():
        if weight.ndim < 2:
            nn.init.zeros_(weight)  # biases; norms are reset below
            continue
        std = init.std if init.std is not None else weight.shape[-1] ** -0.5
        if path.startswith("embed."):
            std = init.embed_std
        elif path.endswith(WRITES):
            std *= {"plain": 1.0, "depth": 1 / math.sqrt(writes), "zero": 0.0}[init.residual]
        nn.init.normal_(weight, std=std, generator=generator)
    for module in model.modules():
        if isinstance(module, LayerNorm | RMSNorm):
            module.reset()
        elif isinstance(module, Position):
            module.reset(init.embed_std, generator)

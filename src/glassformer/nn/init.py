"""How weights start."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from .. import config
from .build import builds
from .norm import LayerNorm, RMSNorm
from .position import Position

WRITES = ("out.weight", "down.weight", "ffn.down")  # the matrices that write to the residual stream


@builds(config.Init)
def initialise(init: config.Init, model: nn.Module, stacks: Iterable[config.Stack], seed: int | None) -> None:
    """Draw every parameter of ``model`` anew; the same seed gives the same weights."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    writes = sum(stack.depth * (3 if stack.pattern[0].cross else 2) for stack in stacks)
    for path, weight in model.named_parameters():
        if weight.ndim < 2 or path.endswith("bias"):  # an expert's bias has two sides
            nn.init.zeros_(weight)  # norms are reset below
            continue
        std = init.std if init.std is not None else weight.shape[-1] ** -0.5
        if path.startswith("embed."):
            back = int(path.split(".")[2]) + 1 if path.startswith("embed.lag.") else 0
            std = init.embed_std / (back + 1)  # the further back, the quieter
        elif path == "head.proj.weight" and init.head_std is not None:
            std = init.head_std
        elif path.endswith(WRITES):
            std *= {"plain": 1.0, "depth": 1 / math.sqrt(writes), "zero": 0.0}[init.residual]
        nn.init.normal_(weight, std=std, generator=generator)
    for module in model.modules():
        if isinstance(module, LayerNorm | RMSNorm):
            module.reset()
        elif isinstance(module, Position):
            module.reset(init.embed_std, generator)

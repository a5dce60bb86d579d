"""How weights start. A module says what is its own to say, whoever wrote it:

writes = ("down.weight",)      its matrices that write to the residual stream
def reset(std, generator)      fills in what no rule here draws: a gain, a table of positions
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from .. import config
from ..errors import need
from .build import builds


@builds(config.Init)
def initialise(init: config.Init, model: nn.Module, stacks: Iterable[config.Stack], seed: int | None) -> None:
    """Draw every parameter of ``model`` anew; the same seed gives the same weights.

    Matrices are normal, biases 0, the rest is the module's own to ``reset`` (or ``reset_parameters``, PyTorch's word).
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    blocks = [stack.block(index) for stack in stacks for index in range(stack.depth)]
    writes = sum(part is not None for block in blocks for part in (block.attention, block.cross, block.feedforward))
    modules = dict(model.named_modules())
    ends = {f"{path}.{name}" for path, module in modules.items() for name in getattr(module, "writes", ())}
    for path, weight in model.named_parameters():
        if weight.ndim < 2 or path.endswith("bias"):  # an expert's bias has two sides
            nn.init.zeros_(weight)
            continue
        std = init.std if init.std is not None else weight.shape[-1] ** -0.5
        if path.startswith(("embed.", "source_embed.")):
            back = int(path.split(".")[2]) + 1 if ".lag." in path else 0
            std = init.embed_std / (back + 1)  # the further back, the quieter
        elif path == "head.proj.weight" and init.head_std is not None:
            std = init.head_std
        elif path in ends:
            std *= {"plain": 1.0, "depth": 1 / math.sqrt(writes), "zero": 0.0}[init.residual]
        nn.init.normal_(weight, std=std, generator=generator)
    for path, module in modules.items():
        if hasattr(module, "reset"):
            module.reset(init.embed_std, generator)
        elif vectors := [
            name for name, w in module.named_parameters(recurse=False) if w.ndim < 2 and "bias" not in name
        ]:
            sentence = f"{path}.{vectors[0]} is neither a matrix nor a bias; give {type(module).__name__} a method"
            need(hasattr(module, "reset_parameters"), f"{sentence} reset(self, std, generator) that fills it in.")
            module.reset_parameters()

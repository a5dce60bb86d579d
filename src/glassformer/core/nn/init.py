"""A model is built: modules, memory, first weights. ``build.py`` lists what a module says of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from .. import config
from ..errors import need
from .build import build, builds, declared, kind_of, vectors
from .flow import TracedModule
from .model import Model


def build_model(
    cfg: config.Model,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    seed: int | None = None,
) -> Model:
    """The model that a config describes, its weights drawn by ``cfg.init``.

    On the "meta" device it takes no memory and has no weights. ``seed`` fixes the draw.
    """
    target = torch.device(device) if device is not None else torch.get_default_device()
    with torch.device("meta"):
        model: Model = build(cfg)
    buffer = next((name for name, _ in model.named_buffers()), None)
    fix = "compute it in forward, or make it a Parameter that reset fills in"
    need(buffer is None, f"{buffer} is a buffer, which no model's file holds; {fix}.")
    if dtype is not None:
        model = model.to(dtype)
    for name, module in model.named_modules():
        if isinstance(module, TracedModule) or kind_of(module):
            module.path = name
    if target.type != "meta":
        allocate(model, "cpu" if seed is not None else target)
        with torch.no_grad():
            build(cfg.init, model, cfg.stacks.values(), seed)
        model = model.to(target)
    return model


def allocate(model: Model, device: torch.device | str) -> None:
    """Give a model of the "meta" device memory elsewhere (to_empty would import sympy)."""
    model._apply(lambda weight: torch.empty(weight.shape, dtype=weight.dtype, device=device))  # type: ignore[no-untyped-call]


@builds(config.Init)
def initialise(
    init: config.Init, model: nn.Module, stacks: Iterable[config.Stack], seed: int | None
) -> None:
    """Draw every parameter of ``model`` anew; the same seed gives the same weights.

    Matrices are normal, biases 0, the rest is the module's own to ``reset`` (or
    ``reset_parameters``, PyTorch's word).
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    blocks = [block for stack in stacks for block in stack.blocks]
    writes = sum(len(block.sublayers) for block in blocks)
    residual_writes, flat = declared(model, "writes"), vectors(model)
    std_divisors = {
        f"{path}.{name}": divisor
        for path, module in model.named_modules()
        for name, divisor in getattr(module, "init_std_divisor", {}).items()
    }
    for path, weight in model.named_parameters():
        if path in flat:
            nn.init.zeros_(weight)
            continue
        std = init.std if init.std is not None else weight.shape[-1] ** -0.5
        if path.startswith(("embed.", "source_embed.")):
            std = init.embed_std / std_divisors.get(path, 1)
        elif path == "head.proj.weight" and init.head_std is not None:
            std = init.head_std
        elif path in residual_writes:
            std *= {"plain": 1.0, "depth": 1 / math.sqrt(writes), "zero": 0.0}[init.residual]
        nn.init.normal_(weight, std=std, generator=generator)
    for path, module in model.named_modules():
        if hasattr(module, "reset"):
            module.reset(init.embed_std, generator)
        elif gains := [
            name
            for name, w in module.named_parameters(recurse=False)
            if w.ndim < 2 and "bias" not in name
        ]:
            sentence = (
                f"{path}.{gains[0]} is neither a matrix nor a bias; give "
                f"{type(module).__name__} a method"
            )
            need(
                hasattr(module, "reset_parameters"),
                f"{sentence} reset(self, std, generator) that fills it in.",
            )
            module.reset_parameters()

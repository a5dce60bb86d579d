"""Mapped weights are looked at when a model first reads them: NaN has no place in an answer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..core.nn.finite import check_weights
from ..core.nn.model import Block


def check_when_used(model: nn.Module, names: Iterable[str]) -> None:
    """Look at the weights of these names when their block is first called, before it reads them
    from the disk anyway.

    What comes out is not enough: PyTorch's attention on a CPU makes zeros of NaN scores.
    """
    waiting = {name: model.get_parameter(name) for name in names}
    blocks = {path: module for path, module in model.named_modules() if isinstance(module, Block)}
    for path, module in {**blocks, "": model.get_submodule("embed")}.items():
        block_names = (
            [name for name in waiting if name.startswith(f"{path}.")] if path else list(waiting)
        )
        if block_names:
            _FirstUse(module, {name: waiting.pop(name) for name in block_names})


def check_now(model: nn.Module) -> None:
    """Look at once at the weights that still wait for their first use. Raises UserError as that
    would."""
    for module in model.modules():
        for hook in [*module._forward_pre_hooks.values()]:
            if isinstance(hook, _FirstUse):
                hook()


class _FirstUse:
    """A hook that looks at weights once, and is gone."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.handle = module.register_forward_pre_hook(self)

    def __call__(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            check_weights(self.weights.items())
            self.weights.clear()
            self.handle.remove()

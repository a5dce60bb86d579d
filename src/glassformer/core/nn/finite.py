"""Outputs must be finite: where one is NaN or infinite, the weight at fault is named."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..errors import UserError, need
from .model import Block


def is_finite(tensor: Tensor) -> bool:
    """True where every number is finite; ``aminmax`` returns NaN wherever there is one."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.detach().aminmax())


def must_be_finite(model: nn.Module, *answers: Tensor) -> None:
    """Raise UserError that names the first weight that is not finite, where one of ``answers`` is
    not."""
    if all(map(is_finite, answers)):
        return
    _check(model.named_parameters())
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    raise UserError(
        "The model's answer is NaN or infinite though its weights are not: they are too large "
        f"for {kind}; "
        "load it in another dtype or load another checkpoint."
    )


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
            _check(self.weights.items())
            self.weights.clear()
            self.handle.remove()


def _check(weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, weight in weights:
        sentence = f"{name} holds NaN or infinite numbers, so this model has no answer;"
        need(is_finite(weight), f"{sentence} download it again or load another checkpoint.")

"""A module around the same parameters with some modules inside it exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def replace_modules(module: M, swaps: Mapping[nn.Module, nn.Module]) -> M:
    """``module`` with those inside it exchanged as ``swaps`` says; what lies above these is a
    shallow copy."""
    return _replace(module, dict(swaps))  # type: ignore[no-any-return]


# no closure: it would hold the copies
def _replace(module: nn.Module, done: dict[nn.Module, nn.Module]) -> Any:
    if module not in done:
        inside = {
            name: child if child is None else _replace(child, done)
            for name, child in module._modules.items()
        }
        done[module] = module
        if any(inside[name] is not child for name, child in module._modules.items()):
            done[module] = object.__new__(type(module))
            done[module].__dict__.update(module.__dict__, _modules=inside)
    return done[module]

"""Modules and parameters inside a module exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def replace_modules(module: M, swaps: Mapping[nn.Module, nn.Module]) -> M:
    """``module`` with some inside it exchanged; what lies above these is a shallow copy."""
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


def replace_parameter(model: nn.Module, path: str, weight: Any) -> None:
    """Another parameter in the place of the one at ``path``."""
    at, _, name = path.rpartition(".")
    setattr(model.get_submodule(at), name, weight)


def is_packed(weight: Tensor) -> bool:
    """True of a weight that holds codes of few bits, whose numbers ``decoded()`` returns."""
    return hasattr(weight, "decoded")

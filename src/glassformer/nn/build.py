"""A config's type chooses its module: the one registry of the house."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

M = TypeVar("M", bound=Callable[..., Any])

_MAKERS: dict[type, Callable[..., Any]] = {}


def builds(kind: type) -> Callable[[M], M]:
    """Class decorator: this module (or function) is what a config of type ``kind`` builds."""

    def register(maker: M) -> M:
        if kind in _MAKERS:
            raise TypeError(f"{kind.__name__} already builds {_MAKERS[kind].__name__}")
        _MAKERS[kind] = maker
        return maker

    return register


def build(config: Any, *args: Any) -> Any:
    """The module that ``config`` describes; ``args`` are what only its place in the model can know."""
    return _MAKERS[type(config)](config, *args)


def built() -> set[type]:
    """Every config type that has a module."""
    return set(_MAKERS)

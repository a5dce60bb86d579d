"""Tokenizers of every published format, read or trained; nothing heavy loads before its first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .formats import open
    from .stream import Stream
    from .tokenizer import Tokenizer
    from .trainers import train

_HOME = {
    "Stream": ".stream",
    "Tokenizer": ".tokenizer",
    "open": ".formats",
    "train": ".trainers",
}
__all__ = ["Stream", "Tokenizer", "open", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

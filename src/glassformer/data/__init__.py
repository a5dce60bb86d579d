"""Data: corpora, examples with answers, and shards of tokens; nothing heavy loads before its first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .corpus import Source
    from .registry import corpora, find
    from .shards import Shards, tokenise

_HOME = {"Shards": ".shards", "Source": ".corpus", "corpora": ".registry", "find": ".registry", "tokenise": ".shards"}
__all__ = ["Shards", "Source", "corpora", "find", "tokenise"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

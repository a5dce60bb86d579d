"""Text: tokenizers of every published format, corpora, shards of tokens; nothing heavy loads before its first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .corpus import Source
    from .formats import open
    from .named import corpora, find
    from .shards import Shards, tokenise
    from .stream import Stream
    from .tokenizer import Tokenizer
    from .trainers import train

_HOME = {
    "Shards": ".shards",
    "Source": ".corpus",
    "Stream": ".stream",
    "Tokenizer": ".tokenizer",
    "corpora": ".named",
    "find": ".named",
    "open": ".formats",
    "tokenise": ".shards",
    "train": ".trainers",
}
__all__ = ["Shards", "Source", "Stream", "Tokenizer", "corpora", "find", "open", "tokenise", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Inspection: what happens inside a model while it runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .alignment import alignments, svg
    from .looking import describe, foretold, look, paths, summarise, to_dict, tokens

__all__ = ["alignments", "describe", "foretold", "look", "paths", "summarise", "svg", "to_dict", "tokens"]


def __getattr__(name: str) -> Any:
    """What the room has, from its file: ``masks`` beside them needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = ".alignment" if name in ("alignments", "svg") else ".looking"
    return getattr(importlib.import_module(home, __name__), name)

"""Inspection: what happens inside a model while it runs."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .alignment import alignments, svg
    from .looking import describe, look, paths, predictions, read_tokens, summarise, to_dict

__all__ = ["alignments", "describe", "look", "paths", "predictions", "read_tokens", "summarise", "svg", "to_dict"]


def __getattr__(name: str) -> Any:
    """What the room has, from its file: ``masks`` beside them needs no torch."""
    if name == "foretold":
        warnings.warn("glassformer.inspection.foretold is glassformer.inspection.predictions now.", FutureWarning, 2)
        name = "predictions"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = ".alignment" if name in ("alignments", "svg") else ".looking"
    return getattr(importlib.import_module(home, __name__), name)

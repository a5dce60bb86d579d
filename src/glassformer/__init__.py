"""Glassformer: the whole Transformer family in one small, fast library that you can see through.

    model, tokenizer = glassformer.load("folder, hub name or recipe")
    for step in glassformer.generate(model, tokenizer, "Once upon a time"): print(step.text, end="")
    for step in glassformer.train(model, batches, objective, config): ...
    glassformer.look(model, tokenizer, "some text", "*.pattern")

Importing the package does not import torch; the first use of a verb does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from .generation import generate
    from .inspection import look
    from .store import load, save
    from .training import train

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "generate", "load", "look", "save", "train"]

_HOME = {"load": ".store", "save": ".store", "generate": ".generation", "train": ".training", "look": ".inspection"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

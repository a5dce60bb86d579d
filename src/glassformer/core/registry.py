"""Modules that add to the core from outside: each registers what it makes when it is imported.

``glassformer/__init__.py`` lists them, so that the core runs without any and knows none by name.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in typing, whose import --help does without
if TYPE_CHECKING:
    from typing import Any

MODULES: dict[str, list[str]] = {}
"""Names of modules in the package by topic: makers of a config's modules (nn), attention engines,
what prepares a model for many tokens (acceleration), what chooses a training's number format and
compiles it (execution), what draws answers (rollouts), orders of more rows than a list holds (orders),
what saves and loads a model with its files (stores), objectives, synonyms of settings, readers of edits,
what writes a tokenizer (tokenizer_files), trains one (tokenizer_trainers), and encodes long texts faster
(tokenizer_backends)."""


def load(topic: str) -> list[Any]:
    """Import the modules of a topic, in the order in which they were listed."""
    return [importlib.import_module(f"glassformer.{name}") for name in MODULES.get(topic, ())]

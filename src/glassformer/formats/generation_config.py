"""Settings of sampling that come with a model."""

from __future__ import annotations

import json
from pathlib import Path

from ..core import files
from ..core.errors import need

GENERATION = "generation_config.json"
SAMPLING = {
    "temperature": 1.0,
    "top_p": None,
    "top_k": None,
}  # that generation_config.json may name


def saved_sampling(folder: Path | None) -> dict[str, float | None]:
    """The settings of sampling in a model's folder; as transformers reads them, null is none and a
    ``top_k`` of 0 is off."""
    path = folder and folder / GENERATION
    saved = files.read_json(path) if path and path.is_file() else {}
    if saved.get("do_sample") is False:
        return {**SAMPLING, "temperature": 0.0}
    settings = {name: saved[name] for name in SAMPLING if saved.get(name) is not None}
    for name, value in settings.items():
        is_number = type(value) is int or (type(value) is float and name != "top_k")
        need(
            is_number, f'{path}: "{name}" is {json.dumps(value)[:40]}, which is no number; fix it.'
        )
    return {**SAMPLING, **settings, "top_k": settings.get("top_k") or None}

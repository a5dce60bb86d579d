"""Encoders that turn a sentence into one vector, as the sentence-transformers library lays them
out.

modules.json                 which steps follow the encoder: pooling, and perhaps scaling to length 1
1_Pooling/config.json        which vector stands for the sentence
sentence_bert_config.json    how many tokens are read at most (version 6: the tokenizer_config.json says so)

What these files say travels in the raw config.json under one key of our own,
``sentence_transformers``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..core import config, files
from ..core.errors import UserError, need
from .recipe import ConfigReader

KEY = "sentence_transformers"
MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LENGTH = "sentence_bert_config.json"
TOKENIZER = "tokenizer_config.json"
FIX = "download it again"
LONGEST = 1 << 20  # what is more means that there is no limit
MODES: dict[str, Literal["first", "last", "mean", "max"]] = {
    "cls": "first",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
}
FLAGS = {  # how versions before 6 said it, each true or false
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}


def open_beside(folder: Path) -> dict[str, Any]:
    """Settings in a folder's modules.json and the files it names, under our key; empty where there
    is none."""
    if not (folder / MODULES).is_file():
        return {}
    modules = files.json_value(folder / MODULES, str(folder / MODULES), FIX)
    listed = (
        [step for step in modules if isinstance(step, dict)] if isinstance(modules, list) else []
    )
    steps = [str(step.get("type")).rpartition(".")[2] for step in listed]
    if steps not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"{folder / MODULES} asks for {', '.join(steps)[:80] or 'nothing'}, but only "
            "Transformer, Pooling and "
            f"perhaps Normalize are built here; use a model without more."
        )
    named = str(listed[1].get("path"))
    page = files.inside(folder, named, "config.json")
    if page is None:
        raise UserError(
            f"{folder / MODULES} names {json.dumps(named)[:80]}, outside this folder; use "
            "weights from a source "
            "you trust."
        )
    pooling = files.read_json(page, FIX)
    modes = [str(pooling.get("pooling_mode"))] if "pooling_mode" in pooling else []
    modes += [
        FLAGS.get(key, key)
        for key, enabled in pooling.items()
        if key.startswith("pooling_mode_") and enabled is True
    ]
    if len(modes) != 1 or modes[0] not in MODES:
        raise UserError(
            f"{folder / MODULES} pools by {', '.join(modes)[:160] or 'nothing'}, but one of "
            f"{', '.join(MODES)} is "
            f"built here; use a model that does."
        )
    pages = [
        files.read_json(path, FIX) if path.is_file() else {}
        for path in (folder / LENGTH, folder / TOKENIZER)
    ]
    length = pages[0].get("max_seq_length") or pages[1].get("model_max_length")
    has_length = type(length) is int and length <= LONGEST
    return {
        KEY: {
            "pooling": modes[0],
            "normalize": len(steps) == 3,
            "max_seq_length": length if has_length else None,
        }
    }


def read_config(raw: ConfigReader, model: config.Model) -> config.Model:
    """The model as a sentence encoder, where the files beside its config.json make it one."""
    settings = raw.inside(KEY)
    if settings is None:
        return model
    if not isinstance(model, config.Encoder):
        raise UserError(
            f"{raw.source}: {MODULES} makes sentence vectors of a decoder, and here "
            "only encoders do that."
        )
    pool = config.Pool(
        settings.choice("pooling", MODES, "mean"), normalize=settings.flag("normalize", False)
    )
    length = settings.integer("max_seq_length", model.context)
    return replace(model, head=None, pool=pool, context=min(length, model.context))


def write_config(model: config.Model) -> tuple[config.Model, dict[str, Any]]:
    """The encoder alone, and what the files beside its config.json must say; any other model as it
    is."""
    pool = model.pool
    plain = pool is not None and not pool.labels and pool.transform is None
    if pool is None or not plain or not isinstance(model, config.Encoder) or model.head is not None:
        return model, {}
    position = config.stacks(model)["encoder"].position
    context = position.length if isinstance(position, config.Learned) else model.context
    mode = next((key for key, of in MODES.items() if of == pool.mode), None)
    need(
        mode is not None,
        f"sentence-transformers has no pool by {pool.mode}; give --layout glassformer.",
    )
    settings = {"pooling": mode, "normalize": pool.normalize, "max_seq_length": model.context}
    return replace(model, pool=None, context=context), {KEY: settings}


def files_of(settings: Mapping[str, Any], dim: int) -> dict[str, str]:
    """The files that say so to sentence-transformers, by name."""
    steps = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] * settings["normalize"]),
    ]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(steps)
    ]
    pooling = {
        "word_embedding_dimension": dim,
        **{flag: mode == settings["pooling"] for flag, mode in FLAGS.items()},
    }
    length = {"max_seq_length": settings["max_seq_length"], "do_lower_case": False}
    tables: dict[str, Any] = {MODULES: modules, POOLING: pooling, LENGTH: length}
    return {name: json.dumps(table, indent=2) + "\n" for name, table in tables.items()}

"""Encoders that turn a sentence into one vector, as the sentence-transformers library lays them
out.

modules.json                 which steps follow the encoder: pooling, and perhaps scaling to length 1
1_Pooling/config.json        which vector stands for the sentence
config_sentence_transformers.json    prompts by name, the activation of a cross-encoder's score
sentence_bert_config.json    how many tokens are read at most (version 6: the tokenizer_config.json says so)

What these files say travels in the raw config.json under one key of our own,
``sentence_vectors``. A cross-encoder has an encoder alone, and ends in labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..core import config, files
from ..core.errors import UserError, need
from .config_reader import ConfigReader, Settings
from .names import Pairs

KEY = "sentence_vectors"
PAGE = "config_sentence_transformers.json"
SCORE = "score_activation"  # our key of a cross-encoder's
MODULES = "modules.json"
STEPS = ["Transformer", "Pooling", "Normalize"]  # the last is left out where nothing is normed
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
# whether a text may have several labels; none of a number
PROBLEMS = {
    "none": False,
    "regression": None,
    "single_label_classification": False,
    "multi_label_classification": True,
}
SCORES = (  # of a label alone: a number, or its sigmoid
    {
        "problem_type": "regression",
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    },
    {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
)
FLAGS = {  # how versions before 6 said it, each true or false
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}


def open_beside(folder: Path) -> Settings:
    """Settings in a folder's modules.json and the files it names, under our key; empty where there
    is none."""
    source = folder / MODULES
    if not source.is_file():
        return {}
    modules = files.json_value(source, str(source), FIX)
    page = _beside(folder / PAGE)
    modules = modules if isinstance(modules, list) else []
    listed = [step for step in modules if isinstance(step, dict)]
    steps = [str(step.get("type")).rpartition(".")[2] for step in listed]
    if steps == ["Transformer"] and page.get("model_type") == "CrossEncoder":
        return {SCORE: page.get("activation_fn")}
    need(
        steps in (STEPS[:2], STEPS),
        f"{source} asks for {', '.join(steps)[:80] or 'nothing'}, but only Transformer, Pooling and "
        "perhaps Normalize are built here; use a model without more.",
    )
    named = str(listed[1].get("path"))
    path = files.inside(folder, named, "config.json")
    if path is None:
        raise UserError(
            f"{source} names {json.dumps(named)[:80]}, outside this folder; use weights from a "
            "source you trust."
        )
    pooling = files.read_json(path, FIX)
    need(
        pooling.get("include_prompt") is not False or not open_prompts(folder),
        f"{path} leaves the prompt out of the vector, which is not built here; use a model "
        "whose vector is of all tokens.",
    )
    modes = [str(pooling["pooling_mode"])] if "pooling_mode" in pooling else []
    modes += [
        FLAGS.get(key, key)
        for key, enabled in pooling.items()
        if key.startswith("pooling_mode_") and enabled is True
    ]
    need(
        len(modes) == 1 and modes[0] in MODES,
        f"{source} pools by {', '.join(modes)[:160] or 'nothing'}, but one of {', '.join(MODES)} is "
        "built here; use a model that does.",
    )
    lengths, tokenizer = _beside(folder / LENGTH), _beside(folder / TOKENIZER)
    need(
        lengths.get("do_lower_case") is not True,
        f"{folder / LENGTH} asks for small letters before the tokenizer; let the tokenizer do it.",
    )
    length = lengths.get("max_seq_length") or tokenizer.get("model_max_length")
    has_length = type(length) is int and length <= LONGEST
    return {
        KEY: {
            "pooling": modes[0],
            "normalize": steps == STEPS,
            "max_seq_length": length if has_length else None,
        }
    }


def _beside(path: Path) -> Settings:
    return files.read_json(path, FIX) if path.is_file() else {}


def open_prompts(folder: Path) -> Pairs:
    """The prompts of a sentence encoder's folder, names and texts; empty where there are none."""
    page = _beside(folder / PAGE) if (folder / MODULES).is_file() else {}
    default = page.get("default_prompt_name")
    return read_prompts(page.get("prompts") or {}, default, str(folder / PAGE))


def read_prompts(table: Any, default: Any, source: str) -> Pairs:
    """Names and texts of prompts, the ``default`` under the empty name too.

    Raises UserError for what is no table of texts, and for a default that is not in it.
    """
    fits = isinstance(table, dict) and all(isinstance(text, str) for text in table.values())
    need(fits, f'{source}: "prompts" must be a table of names and texts; {FIX}.')
    need(
        default is None or default in table,
        f'{source}: "default_prompt_name" is not the name of a prompt; {FIX}.',
    )
    named = {name: text for name, text in table.items() if name}
    first = table.get("" if default is None else default, "")
    return tuple({**named, **({"": first} if first else {})}.items())


def read_score(raw: ConfigReader, model: config.Model) -> config.Model:
    """The model whose labels have the activation that a classifier's or cross-encoder's files name.

    ``problem_type``: several labels at once have a probability each. A cross-encoder's score goes
    through a sigmoid only where its files say so by name.
    """
    pool, head = model.pool, model.token_head
    page = raw.inside("sentence_transformers")
    act = raw.value(SCORE, None) or (page and page.value("activation_fn", None))
    act = act or raw.value("sbert_ce_default_activation_function", None)
    named = str(act or "Identity").rpartition(".")[2]
    several = raw.choice("problem_type", PROBLEMS, "none")
    if pool is None or not pool.labels:
        need(
            not (several and head is not None),
            f'{raw.source}: "problem_type" is for labels of a text, and here each token has its own.',
        )
        return model
    need(
        several is not None or pool.labels == 1,
        f'{raw.source}: "problem_type" is "regression" with several numbers; use a model with one.',
    )
    allowed = ("Identity", "Sigmoid") if pool.labels == 1 else ("Identity", "Sigmoid", "Softmax")
    need(
        named in allowed,
        f"{raw.source}: the score goes through {named[:60]}, which is not built here; use a model "
        f"with one of {', '.join(allowed)}.",
    )
    return replace(model, pool=replace(pool, sigmoid=several or named == "Sigmoid"))


def write_score(model: config.Model) -> Settings:
    """The words that say of labels that each has a probability of its own, and of one label whether it
    is a number: where nothing is said, both libraries take its sigmoid."""
    pool = model.pool
    if pool is None or not pool.labels:
        return {}
    if pool.labels == 1:
        return SCORES[pool.sigmoid]
    return {"problem_type": "multi_label_classification"} if pool.sigmoid else {}


def read_config(raw: ConfigReader, model: config.Model) -> config.Model:
    """The model as a sentence encoder, where the files beside its config.json make it one."""
    settings = raw.inside(KEY)
    if settings is None:
        return read_score(raw, model)
    if not model.is_encoder:
        raise UserError(
            f"{raw.source}: {MODULES} makes sentence vectors of a decoder, and here "
            "only encoders do that."
        )
    pool = config.Pool(
        settings.choice("pooling", MODES, "mean"), normalize=settings.flag("normalize", False)
    )
    length = settings.integer("max_seq_length", model.context)
    return replace(model, head=None, pool=pool, context=min(length, model.context))


def write_config(model: config.Model) -> tuple[config.Model, Settings]:
    """The encoder alone, and what the files beside its config.json must say; any other model as it
    is."""
    pool = model.pool
    encoder = model.is_encoder and model.head is None
    if not encoder or pool is None or pool.labels or pool.transform is not None:
        score = write_score(model)
        return (replace(model, pool=replace(pool, sigmoid=False)) if pool else model), score
    position = model.stacks["encoder"].position
    context = position.length if isinstance(position, config.Learned) else model.context
    mode = next((key for key, of in MODES.items() if of == pool.mode), None)
    need(
        mode is not None,
        f"sentence-transformers has no pool by {pool.mode}; give --layout glassformer.",
    )
    settings = {"pooling": mode, "normalize": pool.normalize, "max_seq_length": model.context}
    return replace(model, pool=None, context=context), {KEY: settings}


def files_of(
    settings: Mapping[str, Any], dim: int, prompts: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """The files that say so to sentence-transformers, by name."""
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(STEPS if settings["normalize"] else STEPS[:2])
    ]
    pooling = {
        "word_embedding_dimension": dim,
        **{flag: mode == settings["pooling"] for flag, mode in FLAGS.items()},
    }
    length = {"max_seq_length": settings["max_seq_length"], "do_lower_case": False}
    tables: Settings = {MODULES: modules, POOLING: pooling, LENGTH: length}
    if prompts:
        texts = dict(prompts)
        first = texts.pop("", None)
        default = next((name for name, text in texts.items() if text == first), None)
        tables[PAGE] = {"prompts": texts, "default_prompt_name": default}
    return {name: json.dumps(table, indent=2) + "\n" for name, table in tables.items()}

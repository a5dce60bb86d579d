"""Defaults of a training on a text: tokenizer, model and steps, from the text's
size and kind alone.

The table is made of experiments on texts of 20 KB to 20 MB: docs/first-hour.md, made again by
benchmarks/first_hour.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.config import Encoder, EncoderDecoder, serial
from ..core.config.objective import Objective
from ..core.errors import UserError
from ..formats.data import find as find_corpus
from ..formats.tokenizer_trainers import written_specials
from . import run_config, run_file
from .run_plan import base_model

MIN_BYTES = 500  # bytes of text from which anything can be learnt and some of it held out
MAX_READ = 1 << 23  # characters that are looked at; the rest of a text is taken to be like them
# bytes between white space, on average, from which a text has no words (genes, base64), unless
MAX_WORD = 40
# it has so many different characters: Chinese and Japanese, whose words nothing parts
MANY_CHARACTERS = 1000
EVALUATIONS = 20
# steps between them at least: on a short run they would take longer than the steps
MIN_INTERVAL = 10
RECIPES: dict[type, str] = {Encoder: "glass/encoder-1m", EncoderDecoder: "glass/pair-3m"}
SMALL_VOCAB = 512  # a BPE where bytes would be chosen
# of these without a better one end the run: validation rises, or the rate has nothing left to give
PATIENCE = 5


SUMMARY = {
    "data.tokenizer": "tokenizer",
    "data.vocab": "vocabulary",
    "recipe": "recipe",
    "context": "context",
    "decoder.dropout": "dropout",
    "steps": "steps",
}
"""The settings that the line about the chosen ones names, and their words there."""


@dataclass(frozen=True)
class Preset:
    """Training settings for a text of up to ``size`` bytes.

    ``vocab`` is a BPE's size, None for bytes; ``epochs`` how often the text is read, at most
    ``steps`` steps long.
    """

    size: float
    vocab: int | None
    recipe: str
    context: int
    batch: int
    dropout: float
    decay: float
    epochs: float
    steps: int = 2400


TABLE = (
    Preset(60e3, None, "glass/200k", 128, 8, 0.2, 1.0, 11),
    Preset(600e3, None, "glass/1m", 128, 16, 0.1, 0.1, 9, 1600),
    Preset(6e6, 2048, "glass/1m", 128, 16, 0.0, 0.1, 3, 2400),
    Preset(float("inf"), 4096, "glass/4m", 256, 16, 0.0, 0.1, 1, 2000),
)


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of a text: bytes of UTF-8, characters, distinct characters, words between white
    space, and a sample."""

    name: str
    bytes: int
    characters: int
    distinct: int
    words: int
    sample: str
    mark: str = ""  # what looks like a special token between documents, with how often it is there


def text_statistics(data: run_config.Data) -> TextStatistics:
    """A look at the text of a run: all of it up to MAX_READ characters, else counts in
    proportion."""
    distinct: set[str] = set()
    totals = np.zeros(3)  # bytes, characters, words
    sample = ""
    marks: Counter[str] = Counter()
    for name in data.sources():
        source = find_corpus(name, data.field, data.separator)
        counts, bytes_read = np.zeros(3), 0
        for piece in source.pieces():
            text, bytes_read = piece.text, piece.bytes_read
            sample = sample or text
            distinct.update(text)
            marks.update(written_specials(text))
            counts += len(text.encode()), len(text), len(text.split())
            if counts[1] > MAX_READ:
                break
        totals += counts * (source.size / bytes_read if counts[1] > MAX_READ else 1.0)
    size, characters, words = map(round, totals.tolist())
    mark = "".join(f'"{name}" {count:,} times' for name, count in marks.most_common(1) if count > 1)
    return TextStatistics(
        ", ".join(data.sources()), size, characters, len(distinct), max(1, words), sample, mark
    )


def objective_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The type of the data and the recipe that the objective in ``changes`` asks for."""
    keys = ("objective", "train.objective", "objective.type", "train.objective.type")
    name = next((changes[key] for key in keys if key in changes), None)
    # only then: the objectives import torch
    objective: Any = serial.members(Objective).get(str(name), Objective) if name else Objective
    settings = {"data.type": "Examples"} if objective.example_fields else {}
    recipe = RECIPES.get(objective.shapes[0])
    if recipe and not {"recipe", "from", "type"} & changes.keys():
        settings["recipe"] = recipe
    return settings


def choose(changes: Mapping[str, Any], exportable: bool = False) -> tuple[dict[str, Any], str]:
    """The settings that ``changes``, as the command line gives them, leave open, and one line that
    says which and why.

    What ``changes`` name stays: a recipe's shape, a checkpoint's everything but how often a text is
    read. ``exportable`` chooses recipes in Qwen3's shape. Nothing is chosen for objectives that do
    not continue texts. Raises UserError for a text too short to learn from.
    """
    settings = run_file.read_run(None, changes)
    if not isinstance(settings.data, run_config.Data) or not settings.train.objective.every_token:
        return {}, ""
    user_settings = {name.removeprefix("train.") for name in changes}
    fresh = not {"recipe", "from", "type"} & user_settings
    statistics = text_statistics(settings.data)
    if statistics.bytes < MIN_BYTES and fresh:
        raise UserError(
            f"{statistics.name} holds {statistics.bytes} bytes of text and at least "
            f"{MIN_BYTES} are needed to learn from and to check on; give more (20 KB begin "
            "to look like the text, 1 MB like its sentences)."
        )
    row = next(row for row in TABLE if statistics.bytes <= row.size)
    data = settings.data
    train_config = settings.train
    defaults = dict[str, Any]()
    if isinstance(data.valid, float):
        defaults["data.split"] = "spread"
    wordy = statistics.bytes / statistics.words < MAX_WORD or statistics.distinct > MANY_CHARACTERS
    wants_bpe = data.vocab or exportable or (row.vocab and wordy)  # llama.cpp has no byte tokenizer
    kind = data.tokenizer or ("bpe" if wants_bpe else "byte")
    vocab = data.vocab or row.vocab or SMALL_VOCAB
    if "from" not in user_settings:
        defaults["data.tokenizer"] = kind
        if kind == "bpe":
            defaults["data.vocab"] = vocab
    lengths = {
        "byte": 1.0,
        "char": statistics.bytes / statistics.characters,
        "bpe": math.log2(vocab) / 4,
    }
    # roughly: for others a published vocabulary's English
    tokens = statistics.bytes / lengths.get(kind, 4.0)
    base, tokenizer, _ = base_model(settings)
    if tokenizer is not None:
        tokens = (
            statistics.bytes
            * len(tokenizer.encode(statistics.sample))
            / len(statistics.sample.encode())
        )
    context = train_config.context or base.context
    if fresh:
        recipe = f"{row.recipe}-qwen3" if exportable else row.recipe
        defaults |= {"recipe": recipe, "decoder.dropout": row.dropout, "batch": row.batch}
        defaults["context"] = context = min(
            train_config.context or row.context, 2 ** int(math.log2(max(16.0, tokens / 32)))
        )
        if not any(name.startswith("optimizer") for name in user_settings):
            defaults["optimizer.weight_decay"] = row.decay
    batch = train_config.batch if "batch" in user_settings or not fresh else row.batch
    steps = train_config.steps
    if "steps" not in user_settings:
        steps = defaults["steps"] = max(
            20, min(row.steps, round(row.epochs * tokens / (batch * context)))
        )
    every = max(MIN_INTERVAL, steps // EVALUATIONS)  # and at the end
    defaults |= {
        "early_stop": PATIENCE,
        "evaluate_every": every,
        "sample_every": 4 * every,
        "save_every": 5 * every,
    }
    defaults = {
        name: value
        for name, value in defaults.items()
        if name not in user_settings and name not in changes
    }
    words = [f"{word} {defaults[name]}" for name, word in SUMMARY.items() if name in defaults]
    size = statistics.bytes
    amount = (
        f"{size / 1e6:.1f} MB"
        if size >= 1e6
        else f"{size / 1e3:.0f} KB"
        if size >= 1e4
        else f"{size:,} bytes"
    )
    notes = (
        [
            f"{statistics.name} holds {amount} of text, so: {', '.join(words)}. Any of them can be set."
        ]
        if words
        else []
    )
    if exportable:
        notes.append(
            "It has Qwen3's shape, which transformers and llama.cpp open; its loss was up to 0.03 "
            "nats higher where that was measured (docs/first-hour.md)."
        )
    if statistics.mark and data.separator is None:
        notes.append(
            f"It holds {statistics.mark}; if that parts its documents, give it as --data.separator."
        )
    return defaults, " ".join(notes)

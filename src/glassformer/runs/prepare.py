"""From a plan to the model and the batches to train and validate on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.config.objective import Full
from ..core.config.run import Train
from ..core.errors import UserError, need, note
from ..core.memory import gibibytes
from ..core.nn import build_model
from ..core.training.batches import Batch, Batches
from ..formats import dictionaries, resolve, tuning
from ..formats.checkpoint import Checkpoint
from ..formats.data import Shards, shards_under, split_corpus, spread_corpus, tokenise
from ..formats.data import find as find_corpus
from ..scale.mesh import ALONE, Mesh
from ..tasks.encoded import Encoded, encode
from ..tasks.example_batches import ExampleBatches, each_once
from .prepared import Prepared, prepared_alike
from .run_config import Data, Run
from .run_plan import RunPlan
from .validation import every_token_once

MAX_PIECES = 10  # of a text whose validation is spread, each at least PIECE_ROWS contexts long
PIECE_ROWS = 16
PROGRESS = 10.0  # seconds after which tokenising says how far it is, and again
# a row for each token
TOKEN_WEIGHTS = ("embed.token.", "embed.lag.", "source_embed.", "head.proj.")
PROMPT_LENGTH = 60  # characters of the source whose answer is shown while training, about


def build(
    plan: RunPlan, device: torch.device, fresh: bool, batches: Any, mesh: Mesh = ALONE
) -> tuple[Any, list[str]]:
    """The model to train, with its checkpoint's weights where the run begins from one; and, for a
    ``fresh`` run, what was newly drawn and what trains, in sentences. Where several processes will
    share it out, one that begins from no checkpoint is on the "meta" device: no process ever holds
    the whole of it.
    """
    settings = plan.settings
    seed, tune = settings.train.seed, settings.train.tune
    full_tune = isinstance(tune, Full)
    name = settings.checkpoint
    need(
        full_tune or name is not None,
        f"{type(tune).__name__} changes a model that was trained; name it, [model] from "
        '= "FOLDER".',
    )
    if name is None or (full_tune and not fresh):
        return build_model(plan.model, device=device if mesh.alone else "meta", seed=seed), []
    anew = TOKEN_WEIGHTS if settings.train.new_embeddings else ()
    opened = Checkpoint.open(name)
    loaded = opened.model_as(plan.model, seed=seed, dtype=torch.float32, device=device, anew=anew)
    drawn = sorted({path.rpartition(".")[0] for path in loaded.new})
    why = (
        f"New embeddings: {', '.join(drawn)} are"
        if anew
        else (f"{name} has no weights for {', '.join(drawn)}:")
    )
    notes = [f"{why} drawn anew."] if drawn else []
    if opened.folder is not None and (opened.folder / dictionaries.PAGE).is_file():
        notes.append(f"The dictionary of features in {name} stays behind.")
    if settings.train.objective.trains:
        need(mesh.alone, f"{type(settings.train.objective).__name__} trains on one process.")
        settings.train.objective.attach(loaded.model, first_of(batches), seed)
    tuning.tune(loaded.model, tune, loaded.new, seed)
    if not full_tune:
        moving = sum(weight.numel() for _, weight in tuning.trained(loaded.model))
        notes.append(
            f"{type(tune).__name__} trains {moving:,} weights; the others stay as they are."
        )
    return loaded.model, notes if fresh else []


def first_of(batches: Any) -> Batch:
    """The batch that comes next, which stays the next."""
    cursor = batches.state()
    batch: Batch = next(batches)
    batches.restore(cursor)
    return batch


def base_of(settings: Run) -> str | None:
    """The base model's name or path in a run that trains a part of it; None where the whole model
    trains."""
    if isinstance(settings.train.tune, Full):
        return None
    name = settings.checkpoint
    assert name is not None
    location = resolve.resolve(name)
    return (
        str(location.resolve())
        if isinstance(location, Path) and Path(name).expanduser().is_dir()
        else name
    )


@dataclass(frozen=True)
class RunData:
    """Data of a run: endless ``batches``, and the validation batches.

    ``name`` says what it is and how much, ``rows`` how many rows it fills; ``prompt`` is a source
    to show an answer to, ``held_out`` the running text that validation reads (all of it or some).
    """

    batches: Any
    validation: Callable[[], Iterable[Batch]]
    name: str
    rows: float
    notes: tuple[str, ...] = ()
    prompt: str | None = None
    held_out: tuple[Shards, ...] = ()


def run_data(plan: RunPlan, mesh: Mesh = ALONE) -> RunData:
    """The run's batches and those it is validated on; the plan has its tokenizer.

    Of several processes the first of each machine comes before its others (``mesh.rank0_first``).
    """
    train_config = plan.settings.train
    data = _running_text(plan, mesh) if plan.examples is None else _examples(plan, mesh.device)
    prepare_args = train_config.objective, plan.tokenizer, train_config.seed
    batches = (
        Prepared(data.batches, *prepare_args) if train_config.objective.prepares else data.batches
    )
    return replace(
        data, batches=batches, validation=lambda: prepared_alike(data.validation(), *prepare_args)
    )


def _tokenised(name: str, plan: RunPlan, mesh: Mesh) -> Shards:
    """The corpus of this name as shards: the first process of a machine looks through it, its
    others take its word."""
    data = plan.settings.data
    assert isinstance(data, Data) and plan.tokenizer is not None
    source = find_corpus(name, data.field, data.separator)
    if not mesh.is_first_here:
        return shards_under(mesh.fetch(f"shards of {name}"), source, plan.tokenizer)
    noted = time.monotonic()

    def progress(bytes_read: int, total: int) -> None:
        nonlocal noted
        if time.monotonic() - noted > PROGRESS:
            noted = time.monotonic()
            note(
                f"  tokenised {bytes_read / max(1, total):.0%} of {source.name} ({gibibytes(total)})"
            )

    shards = tokenise(source, plan.tokenizer, progress=progress)
    mesh.publish(f"shards of {name}", shards.corpus.key)
    return shards


def _running_text(plan: RunPlan, mesh: Mesh) -> RunData:
    data, train_config, context = plan.settings.data, plan.settings.train, plan.context
    assert isinstance(data, Data)
    training: list[tuple[Shards, float]] = []
    held_out: list[Shards] = []
    notes: list[str] = []
    for name, weight in data.sources().items():
        shards = _tokenised(name, plan, mesh)
        notes += getattr(shards.corpus.source, "notes", ())
        if isinstance(data.valid, float):
            # in pieces long enough for some rows each
            count = max(1, min(MAX_PIECES, len(shards) // (PIECE_ROWS * context)))
            pieces = (
                [split_corpus(shards, data.valid)]
                if data.split == "end"
                else spread_corpus(shards, data.valid, count)
            )
            held_out += [valid_shards for _, valid_shards in pieces]
            size = sum(len(train_shards) for train_shards, _ in pieces)
            training += [
                (train_shards, weight * (len(train_shards) / size)) for train_shards, _ in pieces
            ]
        else:
            training.append((shards, weight))
    if isinstance(data.valid, str):
        held_out.append(_tokenised(data.valid, plan, mesh))
    batches = Batches(training, train_config.batch, context, train_config.seed)
    short = next((corpus for corpus in held_out if len(corpus) < 2), None)
    if short is not None and train_config.evaluate_every:
        raise UserError(
            f"{short.name} sets aside {len(short)} token to validate on; raise "
            "data.valid or give a file."
        )
    names = ", ".join(dict.fromkeys(corpus.name for corpus, _ in training))
    tokens = sum(len(corpus) for corpus, _ in training)
    return RunData(
        batches,
        _validation(held_out, train_config, context),
        f"{names} ({tokens:,} tokens)",
        tokens / context,
        tuple(notes),
        held_out=tuple(held_out) if train_config.objective.every_token else (),
    )


def _validation(
    held_out: list[Shards], train_config: Train, context: int
) -> Callable[[], Iterable[Batch]]:
    """Validation batches: all of the held-out text where it is short, else the same random rows of
    it each time."""
    if (
        sum(map(len, held_out)) <= train_config.evaluate_batches * train_config.batch * context
        or min(map(len, held_out)) <= context
    ):
        everything = [(shards, train_config.batch, context) for shards in held_out]
        return lambda: itertools.chain.from_iterable(
            itertools.starmap(every_token_once, everything)
        )
    mixture = [(shards, float(len(shards))) for shards in held_out]
    return lambda: itertools.islice(
        Batches(mixture, train_config.batch, context, train_config.seed),
        train_config.evaluate_batches,
    )


def _examples(plan: RunPlan, device: torch.device) -> RunData:
    data, train_config, context = plan.settings.data, plan.settings.train, plan.context
    assert plan.examples is not None and plan.tokenizer is not None and not isinstance(data, Data)
    train, valid = (
        encode(
            table,
            plan.tokenizer,
            train_config.objective,
            plan.model,
            context,
            data.truncate,
            plan.source_tokenizer,
        )
        for table in plan.examples
    )
    if getattr(train_config.objective, "needs_reference", False):
        train, valid = _with_reference(plan, device, train, valid)
    batches = ExampleBatches(train, train_config.batch, context, train_config.seed)
    rows = train.tokens / (len(train.sides) * context * batches.fill)
    return RunData(
        batches,
        lambda: each_once(valid, train_config.batch, context),
        f"{train.name} ({len(train):,} examples in {rows:,.0f} rows, {batches.fill:.0%} full)",
        rows,
        tuple(line for source in (*plan.examples, train, valid) for line in source.notes),
        min(
            (example.first for example in plan.examples[1]),
            key=lambda text: abs(len(text) - PROMPT_LENGTH),
        ),
    )


def _with_reference(plan: RunPlan, device: torch.device, *tables: Encoded) -> list[Encoded]:
    """The examples with what the model that training begins from says of them; it is gone before
    the model to train is there."""
    train_config, name = plan.settings.train, plan.settings.checkpoint
    objective: Any = train_config.objective
    need(
        name is not None,
        f"{type(objective).__name__} compares with the model that it begins from; name it, [model] "
        f'from = "FOLDER", or set train.objective.{objective.without_reference}.',
    )
    assert name is not None
    loaded = Checkpoint.open(name).model_as(
        plan.model, seed=train_config.seed, dtype=torch.float32, device=device
    )
    sizes = train_config.batch, plan.context
    return [objective.with_reference(loaded.model, table, *sizes) for table in tables]

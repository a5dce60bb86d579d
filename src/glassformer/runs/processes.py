"""Several processes around a run: the first one speaks and prepares, a mistake of any
is everybody's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import config
from ..core.config.run import Muon, Train
from ..core.errors import UserError, mute, need, note
from ..core.tokenizer import Tokenizer
from ..core.training.causal import Causal
from ..formats.tokenizer_forms import from_json
from ..scale import expert_parallel, pipeline, ring, tensor
from ..scale.layout import Layout, micro_batches_for
from ..scale.mesh import Mesh, has_agent, peer_loss, restarts
from ..scale.parallel import AXES
from ..tasks.objectives import Prefix
from . import run_checkpoints
from .resume import previous_run
from .run_config import Run
from .run_plan import RunPlan

INNER = tuple(axis for axis in AXES if axis not in ("data", "replicate"))
CHECKS = {"pipeline": pipeline.check, "tensor": tensor.check, "expert": expert_parallel.check}


@contextlib.contextmanager
def rank0_logging(mesh: Mesh) -> Iterator[None]:
    """Only the first process speaks; a mistake of another, or its loss, becomes the first one's
    sentence.

    Without torchrun's agent, which reports on all of them, each process says why it ends.
    """
    if mesh.alone:
        yield
        return
    if not mesh.is_first:
        mute()
    try:
        yield
    except UserError as error:
        mute(has_agent() and not mesh.is_first)
        mesh.post_error(str(error))
        raise
    except Exception as error:
        mute(has_agent() and not mesh.is_first)
        reason = peer_loss(error)
        if reason is None:
            mesh.post_error(f"A process failed: {type(error).__name__}: {error}")
            raise
        raise UserError(
            mesh.peer_error()
            or (
                "A process of this training ended, was lost or did not answer within "
                f"{mesh.layout.timeout:g} s ({reason}); its own message says why; without one, "
                "start again with --resume: it goes on from the last checkpoint."
            )
        ) from None


def previous(settings: Run, out: Path, resume: bool, mesh: Mesh) -> dict[str, Any]:
    """``resume.previous_run`` as the first process finds it; started anew after a loss, a run goes
    on by itself."""
    record: dict[str, Any] = {}
    with mesh.agreeing():
        if mesh.is_first:
            has_run = (out / "run.json").exists() or bool(run_checkpoints.steps(out))
            record = previous_run(settings, out, resume or (restarts() > 0 and has_run))
    return dict(mesh.first(record))


def with_tokenizer(plan: RunPlan, mesh: Mesh) -> RunPlan:
    """``plan.with_tokenizer``; the first process finds or trains it and tells the others."""
    if mesh.alone:
        return plan.with_tokenizer()
    with mesh.rank0_first(machines=False):
        if mesh.is_first:
            plan = plan.with_tokenizer()
            pair = (plan.tokenizer, plan.source_tokenizer)
            content = [
                tokenizer and (tokenizer.to_json(), tokenizer.chat_template, tokenizer.ends)
                for tokenizer in pair
            ]
            mesh.publish("tokenizers", json.dumps(content))
        else:
            contents = json.loads(mesh.fetch("tokenizers"))
            tokenizer, source = (content and _opened(*content) for content in contents)
            plan = replace(plan, tokenizer=tokenizer, source_tokenizer=source)
    plan.check(plan.shape)
    return plan


def _opened(text: str, chat_template: str | None, end_ids: list[int]) -> Tokenizer:
    """A tokenizer as another process has it."""
    tokenizer = from_json(text)
    tokenizer.chat_template, tokenizer.ends = chat_template, tuple(end_ids)
    return tokenizer


def in_micro_batches(train_config: Train, before: dict[str, Any], mesh: Mesh, out: Path) -> Train:
    """The settings with ``accumulate`` a multiple of the processes that share the rows; a run keeps
    what it began with.

    Raises UserError where that cannot be.
    """
    if before:
        accumulate = int(before.get("pieces", train_config.accumulate))
        fits = [str(n) for n in range(1, accumulate + 1) if accumulate % n == 0]
        need(
            accumulate % mesh.data_parallel_size == 0,
            f"The run in {out} works through a step in {accumulate} micro-batches, which "
            f"{mesh.data_parallel_size} processes cannot share evenly; start "
            f"{', '.join(fits[:-1])} or {fits[-1]} of them.",
        )
    else:
        accumulate = micro_batches_for(train_config.accumulate, mesh.layout)
        need(
            accumulate <= train_config.batch,
            f"train.batch is {train_config.batch} rows, too few for {accumulate} micro-batches, a "
            f"multiple of the {mesh.data_parallel_size} processes; raise it or start fewer.",
        )
    return replace(train_config, accumulate=accumulate)


def check(train_config: Train, model: config.Model, mesh: Mesh) -> None:
    """UserError for what a run on several processes cannot do."""
    if mesh.alone:
        return
    inner = [axis for axis in INNER if mesh.extent(axis) > 1]
    stages = mesh.extent("pipeline")
    other_size = mesh.size // mesh.extent("pipeline")
    need(
        stages == 1 or other_size == 1,
        f"parallel.pipeline {stages} stands alone so far and there are {mesh.size} "
        f"processes; start {stages}.",
    )
    is_causal = isinstance(train_config.objective, Causal | Prefix)
    need(
        stages == 1 or is_causal,
        f"A pipeline learns next tokens (Causal, Prefix), not {type(train_config.objective).__name__}.",
    )
    need(
        len(inner) < 2,
        f"parallel.{' and parallel.'.join(inner)} in one training are not built; give "
        "one of them beside parallel.data.",
    )
    for axis in inner:
        need(
            axis not in train_config.objective.undivided,
            f"{type(train_config.objective).__name__} needs whole rows and the whole model on each "
            f"process; leave parallel.{axis} at 1 and share the rows, parallel.data.",
        )
        ring.check(model) if axis == "context" else CHECKS[axis](model, mesh.extent(axis))


def layout_of(plan: RunPlan, train_config: Train, mesh: Mesh, dtype: str) -> Layout:
    """Returns the memory and traffic layout of the run."""
    return Layout(
        plan.cost,
        mesh.layout,
        train_config.accumulate,
        "bf16" if dtype == "bfloat16" else "fp32",
        isinstance(train_config.optimizer, Muon),
    )


def note_layout(layout: Layout, mesh: Mesh) -> None:
    """Notes what each process holds and receives, and whether the bits are those of one process."""
    if mesh.alone:
        return
    exact = mesh.layout.exact and mesh.extent(*INNER) == 1
    order = "added in one order: the bits of one process" if exact else "added in any order"
    note(f"On {layout.sentence()} Gradients are {order}.")
    stages = mesh.extent("pipeline")
    if layout.accumulate < 2 * stages - 2:
        # the first and the last micro-batches leave stages idle
        idle = (stages - 1) / (layout.accumulate + stages - 1)
        note(
            f"In {layout.accumulate} micro-batches {stages} stages wait for one another {idle:.0%} of the "
            "time; raise train.accumulate."
        )

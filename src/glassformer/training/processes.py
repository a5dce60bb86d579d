"""What several processes do around a run: the first one speaks and prepares, a mistake of any is
everybody's."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .. import config
from ..config.parallel import AXES
from ..config.run import Muon, Run, Train
from ..errors import UserError, mute, need, note
from ..parallel import experts, pipeline, ring, tensor
from ..parallel.layout import Layout, pieces_for
from ..parallel.mesh import Mesh, has_agent, is_loss, restarts
from ..tokenizer import Tokenizer
from . import run_checkpoints
from .execution import matmul_peak
from .objectives import Causal, Prefix
from .plan import RunPlan
from .resume import previous_run

INNER = tuple(axis for axis in AXES if axis not in ("data", "replicate"))
CHECKS = {"pipeline": pipeline.check, "tensor": tensor.check, "expert": experts.check}
PROBE = 1 << 22  # bytes sent to see how fast


@contextlib.contextmanager
def one_voice(mesh: Mesh) -> Iterator[None]:
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
        mesh.leave_word(str(error))
        raise
    except Exception as error:
        mute(has_agent() and not mesh.is_first)
        if not is_loss(error):
            mesh.leave_word(f"A process failed: {type(error).__name__}: {error}")
            raise
        word, reason = mesh.word_left(), str(error).splitlines()[0]
        gone = (
            "A process of this training ended, was lost or did not answer within "
            f"{mesh.layout.timeout:g} s ({reason})"
        )
        again = (
            "its own message says why; without one, start again with --resume: it goes on "
            "from the last checkpoint."
        )
        raise UserError(word or f"{gone}; {again}") from None


def previous(settings: Run, out: Path, resume: bool, mesh: Mesh) -> dict[str, Any]:
    """``resume.previous_run`` as the first process finds it; started anew after a loss, a run goes
    on by itself."""
    found: dict[str, Any] = {}
    with mesh.agreeing():
        if mesh.is_first:
            begun = (out / "run.json").exists() or bool(run_checkpoints.steps(out))
            found = previous_run(settings, out, resume or (restarts() > 0 and begun))
    return dict(mesh.first(found))


def with_tokenizer(plan: RunPlan, mesh: Mesh) -> RunPlan:
    """``plan.with_tokenizer``; the first process finds or trains it and tells the others."""
    if mesh.alone:
        return plan.with_tokenizer()
    with mesh.in_turn(machines=False):
        if mesh.is_first:
            plan = plan.with_tokenizer()
            both = [
                None if one is None else one.to_json()
                for one in (plan.tokenizer, plan.source_tokenizer)
            ]
            mesh.tell("tokenizers", json.dumps(both))
        else:
            texts = json.loads(mesh.told("tokenizers"))
            own, source = (None if text is None else Tokenizer.from_json(text) for text in texts)
            plan = replace(plan, tokenizer=own, source_tokenizer=source)
    plan.check(plan.shape)
    return plan


def in_pieces(how: Train, before: dict[str, Any], mesh: Mesh, out: Path) -> Train:
    """The settings with ``accumulate`` a multiple of the processes that share the rows; a run keeps
    what it began with.

    Raises UserError where that cannot be.
    """
    if before:
        pieces = int(before.get("pieces", how.accumulate))
        shared = (
            f"The run in {out} works through a step in {pieces} pieces, which {mesh.rows} "
            "processes cannot share"
        )
        fits = [str(n) for n in range(1, pieces + 1) if pieces % n == 0]
        need(
            pieces % mesh.rows == 0,
            f"{shared} evenly; start {', '.join(fits[:-1])} or {fits[-1]} of them.",
        )
    else:
        pieces = pieces_for(how.accumulate, mesh.layout)
        few = (
            f"train.batch is {how.batch} rows, too few for {pieces} pieces, a multiple of the "
            f"{mesh.rows} processes"
        )
        need(pieces <= how.batch, f"{few}; raise it or start fewer.")
    return replace(how, accumulate=pieces)


def check(how: Train, model: config.Model, mesh: Mesh) -> None:
    """UserError for what a run on several processes cannot do."""
    if mesh.alone:
        return
    inner = [axis for axis in INNER if mesh.extent(axis) > 1]
    stages, others = mesh.extent("pipeline"), mesh.size // mesh.extent("pipeline")
    alone = (
        f"parallel.pipeline {stages} stands alone so far and there are {mesh.size} "
        f"processes; start {stages}."
    )
    need(stages == 1 or others == 1, alone)
    told = isinstance(how.objective, Causal | Prefix)
    need(
        stages == 1 or told,
        f"A pipeline learns next tokens (Causal, Prefix), not {type(how.objective).__name__}.",
    )
    both = (
        f"parallel.{' and parallel.'.join(inner)} in one training are not built; give one of "
        "them beside parallel.data."
    )
    need(len(inner) < 2, both)
    for axis in inner:
        ring.check(model) if axis == "context" else CHECKS[axis](model, mesh.extent(axis))


def layout_of(plan: RunPlan, how: Train, mesh: Mesh, dtype: str) -> Layout:
    """Who holds and sends what."""
    short = "bf16" if dtype == "bfloat16" else "fp32"
    return Layout(plan.cost, mesh.layout, how.accumulate, short, isinstance(how.optimizer, Muon))


def say_layout(layout: Layout, how: Train, context: int, mesh: Mesh) -> None:
    """The layout, and how much faster than one process it may be, from a product and a transfer
    measured now."""
    if mesh.alone:
        return
    numbers = torch.zeros(PROBE // mesh.size, dtype=torch.uint8)
    mesh.gather(numbers)
    begun = time.perf_counter()
    mesh.gather(numbers)
    rate = PROBE / mesh.most(time.perf_counter() - begun)
    flops = layout.cost.training_flops * how.batch * context
    peak = matmul_peak(torch.bfloat16 if layout.dtype == "bf16" else torch.float32, mesh.device)
    slowest = -mesh.most(-peak)
    alone, sent = flops / slowest, layout.traffic / rate
    stages = mesh.extent("pipeline")
    # the first and the last pieces leave stages idle
    busy = layout.pieces / (layout.pieces + stages - 1)
    gain = alone / (alone / (mesh.rows * mesh.extent("context", "tensor") * stages * busy) + sent)
    exact = mesh.layout.exact and mesh.extent(*INNER) == 1
    order = "added in one order: the bits of one process" if exact else "added in any order"
    note(f"On {layout.sentence()} Gradients are {order}.")
    apart = f"each with cores of its own ({rate / 1e9:.2f} GB/s between them)"
    note(f"Expected: about {gain:.1f} times the speed of one process, {apart}.")
    if layout.pieces < 2 * stages - 2:
        idle = (
            f"In {layout.pieces} pieces {stages} stages wait for one another {1 - busy:.0%} "
            "of the time"
        )
        note(f"{idle}; raise train.accumulate.")

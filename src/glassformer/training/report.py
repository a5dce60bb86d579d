"""What a run says of itself, in lines on standard error. No torch here."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..cost import gibibytes

if TYPE_CHECKING:
    from .plan import RunPlan
    from .prepare import RunData
    from .probe import Plan

MANY_EPOCHS = 20  # times over the text, from which on validation soon rises again


def note(text: str) -> None:
    """A line for the reader, on standard error; where that is closed, full or gone, the work goes on without."""
    if sys.stderr is not None:  # None where it was closed before we began
        try:
            print(text, file=sys.stderr, flush=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a signal came in the middle of another line
            with contextlib.suppress(OSError):
                sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def duration(seconds: float) -> str:
    """A time span in the unit a person would say."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def announce(plan: RunPlan, data: RunData, machine: Plan, frozen: int) -> None:
    """What is about to be done, with what, and how long it will take; ``frozen`` weights do not train."""
    how, cost = plan.settings.train, plan.cost
    note(
        f"{cost.total:,} parameters, {cost.training_flops / 1e6:,.1f} MFLOP a {cost.each}, "
        f"about {gibibytes(plan.memory(machine.dtype, frozen))} of memory."
    )
    epochs = how.steps * how.batch / data.rows
    evaluations = math.ceil(how.steps / how.evaluate_every) if how.evaluate_every else 0
    batches = sum(1 for _ in data.validation()) if evaluations else 0  # each a third of a step: there is no backward
    note(
        f"{how.steps:,} steps of {how.batch * plan.context:,} tokens on {data.name}, {epochs:.1f} times over: "
        f"about {duration(machine.seconds * (how.steps + evaluations * batches / 3))}."
    )
    if epochs > MANY_EPOCHS and how.objective.every_token:
        note("The text is read so often that the model will learn it by heart; take more text or fewer --steps.")
    note(f"{machine.why}.")


def held_out_loss(loss: float, data: RunData) -> str:
    """A validation loss in words; of running text also in bits per byte, comparable between tokenizers."""
    words = f"validation loss {loss:.4f}"
    if not data.held_out:
        return words
    tokens, size = sum(map(len, data.held_out)), sum(part.bytes for part in data.held_out)
    return f"{words}, {loss / math.log(2) * tokens / size:.2f} bits per byte"

"""Learning-rate schedules: what the rate is multiplied by, as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config.run import Constant, Cosine, InverseSqrt, Schedule, WarmupStableDecay


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """The multiplier of the rate for update ``step`` (1 is the first) of ``steps``."""
    warmup = _steps(schedule.warmup, steps)
    match schedule:
        case InverseSqrt(dim=None):
            return min(step / warmup, math.sqrt(warmup / step)) if warmup else 1 / math.sqrt(step)
        case InverseSqrt(dim=int(dim)):
            rising = step * warmup**-1.5 if warmup else math.inf
            return min(1 / math.sqrt(step), rising) / math.sqrt(dim)
    if step < warmup:
        return step / warmup
    match schedule:
        case Constant():
            return 1.0
        case Cosine(floor=floor):
            done = (step - warmup) / max(1, steps - warmup)
            return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        case WarmupStableDecay(decay=decay, floor=floor):
            decaying = _steps(decay, steps)
            share = 1.0
            if decaying:  # + 1: no step is without effect
                share = min(1.0, (max(0, steps - step) + 1) / (decaying + 1))
            return floor + (1 - floor) * share
    raise TypeError(schedule)


def factor_in_extended_run(
    schedule: Schedule, step: int, steps: int, ended: Sequence[int] = ()
) -> float:
    """``factor`` in a run that was extended: it had ended at each step of ``ended`` before it got
    more steps.

    Constant and InverseSqrt go on as if nothing had been; Cosine and WarmupStableDecay, whose rate
    has fallen, begin anew for the steps that were added.
    """
    if isinstance(schedule, Constant | InverseSqrt):
        return factor(schedule, step, ended[0] if ended else steps)
    start = max((end for end in ended if end < step), default=0)
    return factor(
        schedule, step - start, min(end for end in (*ended, steps) if end >= step) - start
    )


def describe(schedule: Schedule, added: int) -> str:
    """A sentence about the rate in the added steps, as ``factor_in_extended_run`` computes it."""
    name = type(schedule).__name__
    if isinstance(schedule, Constant | InverseSqrt):
        return f"the rate goes on as {name} has it"
    return f"{name} begins anew for the {added:,} added steps"


def _steps(length: float, steps: int) -> int:
    """A length given in steps, or below 1 as a share of the run."""
    return round(length * steps) if length < 1 else round(length)

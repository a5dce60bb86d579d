"""Learning-rate schedules: what the rate is multiplied by, as a pure function of the step."""

from __future__ import annotations

import math

from ..run import Constant, Cosine, InverseSqrt, Schedule, WarmupStableDecay


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
            left = (
                min(1.0, (max(0, steps - step) + 1) / (decaying + 1)) if decaying else 1.0
            )  # no step is without effect
            return floor + (1 - floor) * left
    raise TypeError(schedule)


def _steps(length: float, steps: int) -> int:
    """A length given in steps, or below 1 as a share of the run."""
    return round(length * steps) if length < 1 else round(length)

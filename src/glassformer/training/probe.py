"""Short measurements before a run, and what they decide: number format, compiling, expected time, memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import run
from .memory import keep_freed_memory
from .objective import Objective, gradients, split
from .precision import Half

if TYPE_CHECKING:
    from .data import Batch

COMPILE_AFTER = 20 * 60
"""Seconds of expected training from which compiling pays: it costs up to a minute, and saves a tenth of a step."""

TRIAL = 2e11
"""FLOPs of a trial step at most: a second or two on a small machine, so that training begins at once."""


@dataclass(frozen=True)
class Plan:
    """What was decided for a run: it is kept with the checkpoints, so that a resumed run does the same.

    ``seconds`` is a step's measured time (0: not measured); ``peak`` the machine's measured matrix product in FLOP/s.
    """

    dtype: str = "float32"
    compile: bool = False
    seconds: float = 0.0
    peak: float = 0.0
    why: str = ""


def make_plan(model: nn.Module, batch: Batch, objective: Objective, settings: run.Train) -> Plan:
    """Decide number format and compiling for a run, timing a step or two of ``batch``; the model is left as it was."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    peaks = {name: matmul_peak(getattr(torch, name), device) for name in ("float32", "bfloat16")}
    fast = peaks["bfloat16"] > 1.5 * peaks["float32"]
    if settings.dtype != "auto":
        tried = [settings.dtype]
    elif fast and _work(model, batch) > TRIAL:
        tried = ["bfloat16"]  # a step that is mostly matrix products needs no trial of both
    else:
        tried = ["float32", "bfloat16"] if fast else ["float32"]
    seconds = {name: _step_seconds(model, batch, objective, settings, name) for name in tried}
    # Small models spend their steps on calls, not on arithmetic: there bf16 may gain nothing.
    dtype = "bfloat16" if seconds.get("bfloat16", 1e9) < 0.9 * seconds.get("float32", 1e9) else tried[0]
    facts = [f"{name} {_say(seconds[name])} a step" for name in tried]
    expected = seconds[dtype] * settings.steps
    compiled, reason = _compiles(settings.compile, expected, device)
    why = f"{dtype} ({', '.join(facts)}); {reason}"
    return Plan(dtype, compiled, seconds[dtype], peaks[dtype], why)


def _work(model: nn.Module, batch: Batch) -> float:
    """The FLOPs of a step, roughly."""
    return 6.0 * sum(p.numel() for p in model.parameters()) * batch.tokens.numel()


def _compiles(asked: str, expected: float, device: torch.device) -> tuple[bool, str]:
    if asked != "auto":
        return asked == "yes", f"torch.compile as asked: {asked}"
    if expected < COMPILE_AFTER:
        return False, "no torch.compile: the run is too short to pay for it"
    if device.type == "cpu":
        return False, "no torch.compile: on a CPU the gradients written by hand are as fast"
    return True, "torch.compile: the run is long enough to pay for it"


def _say(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _step_seconds(model: nn.Module, batch: Batch, objective: Objective, settings: run.Train, dtype: str) -> float:
    """The time of forward and backward, from as many rows as ``TRIAL`` pays for; the model is left as it was."""
    rows, training = len(batch.tokens), model.training
    part = split(batch, min(rows, max(settings.accumulate, math.ceil(_work(model, batch) / TRIAL))))[0]
    model.train()
    half = Half(model) if dtype == "bfloat16" else None
    runner = model if half is None else half.model
    with torch.random.fork_rng():
        best = _fastest(lambda: gradients(runner, part, objective, 1), patience=0.5)
    model.zero_grad(set_to_none=True)
    model.train(training)
    return best * rows / len(part.tokens)


def _fastest(work: Callable[[], Any], patience: float, times: int = 3) -> float:
    """The shortest of a few times in seconds; fewer when one alone takes longer than ``patience``."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
        if found[-1] > patience:
            break
    return min(found)


def matmul_peak(dtype: torch.dtype, device: torch.device, size: int = 1024) -> float:
    """The fastest measured matrix product of this machine, FLOP/s."""
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: left @ right, patience=1.0, times=6)

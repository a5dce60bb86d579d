"""The execution of a run: number format and compiling from a table of measured reasons, and the
time it may take.

A stopwatch tells the time that a run may take; it decides nothing, so that the same command on the
same kind of machine gives the same bits.
``benchmarks/plan.py`` measures the table.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core import config
from ...core.config import run
from ...core.config.objective import Objective
from ...core.errors import need
from ...core.nn import Model
from ...core.training.batches import Batch
from ...core.training.loss import gradients, split
from .allocator import keep_freed_memory
from .bf16_replica import Bf16Replica
from .blockwise import compiled_with_loss

COMPILED = ("yes", "blocks")  # of train.compile
CPUINFO = Path("/proc/cpuinfo")  # Linux; elsewhere nothing is known of the processor
TRIAL = 2e11
"""FLOPs of a trial step at most: a second or two on a small machine, so that training begins
at once."""


@dataclass(frozen=True)
class ExecutionSettings:
    """Number format and compiling of a run, saved with it so that a resumed run does the same.

    ``blocks``: each block is compiled, not the whole model; ``tf32``: fp32 products are in TF32.
    ``machine`` is the kind it was decided for. ``seconds`` is a step's measured time (0: not
    measured) and ``peak`` the machine's measured matrix product in FLOP/s: they tell, they decide
    nothing.
    """

    dtype: str = "float32"
    compile: bool = False
    seconds: float = 0.0
    peak: float = 0.0
    why: str = ""
    machine: str = ""
    tf32: bool = False
    blocks: bool = False

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """While entered, fp32 products are computed as ``tf32`` says, afterwards as before."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class PrecisionRule:
    """A row of the table: on this kind of machine a model at least ``width`` wide trains in this
    format, and why."""

    machine: str
    width: int
    dtype: str
    why: str


PRECISION_RULES = (
    PrecisionRule(
        "CPU with AMX",
        384,
        "bfloat16",
        "on a CPU with AMX a step 384 wide took a third of the time of fp32",
    ),
    PrecisionRule(
        "CPU with AMX",
        0,
        "float32",
        "on a CPU with AMX a step 128 wide took 1.4 times as long in bf16",
    ),
    PrecisionRule(
        "AMD CPU with AVX512-BF16",
        128,
        "bfloat16",
        "on a Zen 5 steps 128 wide and more are faster in bf16",
    ),
    PrecisionRule(
        "AMD CPU with AVX512-BF16",
        0,
        "float32",
        "below a width of 128 fp32 won on a Zen 5 in seven of eight runs",
    ),
    PrecisionRule(
        "CPU with AVX512-BF16",
        0,
        "float32",
        "on a Xeon without AMX steps took 1.1 to 1.4 times as long in bf16",
    ),
    PrecisionRule(
        "GPU with bf16",
        0,
        "bfloat16",
        "its matrix units take bf16, as everybody trains; not measured here",
    ),
    PrecisionRule("machine", 0, "float32", "no product in bf16 is known to be faster here"),
)
"""The first row that fits decides. Sources: docs/decisions.md, "Training speed"."""


def machine(device: torch.device) -> str:
    """The kind of machine that ``device`` is, in the table's words."""
    if device.type == "cuda":
        return "GPU with bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "machine"
    cpuinfo = ""
    if device.type == "cpu":
        with contextlib.suppress(OSError):
            cpuinfo = CPUINFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    words = set(cpuinfo.split())
    if "amx_bf16" in words:
        return "CPU with AMX"
    if "avx512_bf16" in words:
        return "AMD CPU with AVX512-BF16" if "AuthenticAMD" in words else "CPU with AVX512-BF16"
    return "machine"


def find_rule(model_config: config.Model, kind: str) -> PrecisionRule:
    """The table's row for a model of this config on a machine of this kind."""
    return next(
        row
        for row in PRECISION_RULES
        if row.machine in (kind, "machine") and model_config.dim >= row.width
    )


def _tf32(settings: run.Train, device: torch.device) -> str:
    """Returns the note on TF32; UserError where the device has none."""
    fits = not settings.tf32 or device.type == "cuda"
    need(fits, f"train.tf32 is for NVIDIA GPUs and this run computes on {device}; leave it out.")
    return "; fp32 products in TF32, as asked" if settings.tf32 else ""


def choose_execution(
    model: Model, batch: Batch | None, objective: Objective, settings: run.Train
) -> ExecutionSettings:
    """Decide number format and compiling for a run, and time a step of ``batch`` where there is one;
    the model is left as it was."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    tf32_note = _tf32(settings, device)
    kind = machine(device)
    dtype, why = _dtype(model.config, kind, settings)
    usual = (
        "on a CPU it does not pay"
        if device.type == "cpu"
        else "it pays in long runs: --compile yes"
    )
    reason = (
        f"no torch.compile: {usual}"
        if settings.compile == "auto"
        else f"torch.compile as asked: {settings.compile}"
    )
    seconds = peak = 0.0
    if batch is not None:
        with ExecutionSettings(tf32=settings.tf32).products():
            seconds = _step_seconds(model, batch, objective, settings, dtype)
            peak = matmul_peak(getattr(torch, dtype), device)
    return ExecutionSettings(
        dtype,
        settings.compile in COMPILED,
        seconds,
        peak,
        f"{dtype}: {why}; {reason}{tf32_note}",
        kind,
        settings.tf32,
        settings.compile == "blocks",
    )


def _dtype(model_config: config.Model, kind: str, settings: run.Train) -> tuple[str, str]:
    """The number format of a run, and why."""
    row = find_rule(model_config, kind)
    if settings.dtype == "auto":
        return (row.dtype, row.why)
    return (settings.dtype, "as asked")


def choose_by_table(
    model_config: config.Model, device: torch.device, settings: run.Train
) -> ExecutionSettings:
    """The same for a model that no process holds as a whole: by the table alone, its time not
    measured."""
    need(
        settings.compile not in COMPILED,
        "train.compile is for one process so far; on several leave it out.",
    )
    kind = machine(device)
    dtype, why = _dtype(model_config, kind, settings)
    why = f"{dtype}: {why}; no torch.compile on several processes{_tf32(settings, device)}"
    return ExecutionSettings(dtype, False, why=why, machine=kind, tf32=settings.tf32)


def _work(model: nn.Module, batch: Batch) -> float:
    return 6.0 * sum(p.numel() for p in model.parameters()) * batch.tokens.numel()


def _step_seconds(
    model: nn.Module, batch: Batch, objective: Objective, settings: run.Train, dtype: str
) -> float:
    """The time of forward and backward, from as many rows as ``TRIAL`` pays for; the model is left
    as it was."""
    rows, training = len(batch.tokens), model.training
    micro_batch = split(
        batch, min(rows, max(settings.accumulate, math.ceil(_work(model, batch) / TRIAL)))
    )[0]
    model.train()
    runner = Bf16Replica(model).model if dtype == "bfloat16" else model
    device = next(model.parameters()).device
    # no other GPU is woken for it
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        best = _fastest(lambda: gradients(runner, micro_batch, objective, 1), patience=0.5)
    model.zero_grad(set_to_none=True)
    model.train(training)
    return best * rows / len(micro_batch.tokens)


def _fastest(work: Callable[[], Any], patience: float, times: int = 3) -> float:
    """The shortest of a few times in seconds; fewer when one alone takes longer than
    ``patience``."""
    timings = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        timings.append(time.perf_counter() - start)
        if timings[-1] > patience:
            break
    return min(timings)


def matmul_peak(dtype: torch.dtype, device: torch.device) -> float:
    """The fastest measured matrix product of this machine, FLOP/s; a GPU is only busy with a large
    one."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: a @ b, patience=1.0, times=6)


def prepare(
    model: Model, execution: ExecutionSettings, several: bool
) -> tuple[Any, Bf16Replica | None, Callable[[], Any]]:
    """The model as training calls it, its bf16 copy where there is one, and what a step is computed
    in; ``several`` processes gather their shards in bf16."""
    if next(model.parameters()).device.type == "cpu":
        keep_freed_memory(several)
    replica = Bf16Replica(model) if execution.dtype == "bfloat16" and not several else None
    runner: Any = model if replica is None else replica.model
    if execution.compile:
        runner = compiled_with_loss(runner, execution.blocks)
    return runner, replica, execution.products if execution.tf32 else contextlib.nullcontext

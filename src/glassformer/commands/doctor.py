"""``glassformer doctor``: what computes on this machine, why, and what would make it faster."""

from __future__ import annotations

import time
from typing import Any

from .. import __version__
from .common import CommandOutput, note_all, tables

EXAMPLES = ("glassformer doctor", "glassformer doctor --json")
USAGE = "glassformer doctor [--json]"
GAINS = ("avx2", "avx_vnni", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""What a processor may have that products gain by; AMX is used by torch's own kernels alone."""
COMPILE = (
    "The compiled kernels are missing, so int8, int4 and the engine are many times slower than "
    "they can be. "
    "Installed: pip install --force-reinstall --no-deps the wheel for this machine; "
    "in a clone: pip install ziglang, then python hatch_build.py."
)


def run() -> CommandOutput:
    """Shows what computes on this machine and why."""
    values = system_info()
    rows = [(name.replace("_", " "), _format_value(value)) for name, value in values.items()]
    note_all(advice_for(values))
    return CommandOutput(values, tables.lines(rows, left_columns=(0, 1)))


def system_info() -> dict[str, Any]:
    """Returns versions, processor, kernels, threads and memory of this machine by name."""
    import os
    import platform

    import torch

    from ..core.memory import available_memory
    from ..fast import device, kernels
    from ..fast.kernels import library

    flags = kernels.features()
    free = available_memory()
    return {
        "glassformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "processor": torch.cpu.get_capabilities().get("cpu_name", platform.processor()),
        "features": [flag for flag in GAINS if flags.get(flag)],
        "kernels": kernels.path(),
        "why": kernels.reason(),
        "builds": library.builds(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "thread_pool": "torch's" if library.pool().value else None,
        "memory_free_gb": None if free is None else round(free / 1e9, 1),
        "memory_read_gb_per_s": round(memory_speed(), 1),
        "device": device.title(device.find()),
    }


def advice_for(values: dict[str, Any]) -> list[str]:
    """Returns advice on the findings, a sentence or two each; none where all is well."""
    advice = []
    if values["kernels"] == "torch" and "x86_64" in values["system"]:
        advice.append(
            COMPILE if not values["builds"] and "avx2" in values["features"] else values["why"]
        )
    if values["threads"] < values["cores"]:
        advice.append(
            f"{values['threads']} of {values['cores']} cores compute: OMP_NUM_THREADS or a "
            "container says so."
        )
    if values["kernels"] != "torch" and values["thread_pool"] is None:
        advice.append(
            "torch brings no OpenMP pool of the kind that the kernels use, so that they "
            "compute on one core."
        )
    return advice


def memory_speed() -> float:
    """GB/s at which all threads read memory now, the median of five; what a token costs at one
    sequence."""
    import statistics

    import torch

    numbers, times = torch.ones(1 << 25), []
    for _ in range(5):
        start = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - start)
    return numbers.nbytes / statistics.median(times) / 1e9


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)

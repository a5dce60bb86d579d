"""``glassformer doctor``: what computes on this machine, why, and what would make it faster; what
of a model's folder loads."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.errors import UserError
from .common import text_table
from .parsing import CommandOutput, note_all

EXAMPLES = ("glassformer doctor", "glassformer doctor --json", "glassformer doctor tiny-stories")
USAGE = "glassformer doctor [MODEL] [--json]"
GAINS = (
    *("avx2", "avx_vnni", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("neon", "dotprod", "i8mm", "bf16"),
)
"""Instructions that make products faster; AMX is used by torch's own kernels alone."""
COMPILE = (
    "The compiled kernels are missing, so int8, int4 and the engine are many times slower than "
    "they can be. "
    "Installed: pip install --force-reinstall --no-deps the wheel for this machine; "
    "in a clone: pip install ziglang, then python hatch_build.py."
)


def run(model: str | None = None) -> CommandOutput:
    """Shows what computes on this machine and why, or what of a model loads.

    model MODEL: a folder, a GGUF file or a hub name: what it holds and what is refused of it
    """
    values = system_info() if model is None else model_info(model)
    refused = values.get("refused", [])
    rows = [
        (name.replace("_", " "), _format_value(value))
        for name, value in values.items()
        if name != "refused"
    ]
    note_all(advice_for(values) if model is None else refused)
    return CommandOutput(
        values, text_table.lines(rows, left_columns=(0, 1)), exit_code=bool(refused)
    )


def model_info(name: str) -> dict[str, Any]:
    """Returns what a model's folder or GGUF file holds, by name, and the sentences of what is
    refused; no weight is read."""
    from ..core import files, memory
    from ..core.checkpoints.headers import read_headers
    from ..formats import chat_template
    from ..formats.checkpoint import Checkpoint, open_tokenizer
    from ..formats.gguf_file import read_gguf
    from ..formats.resolve import resolve
    from ..scale.cost import cost

    values: dict[str, Any] = {"model": name}
    refused: list[str] = []

    def attempt(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except UserError as error:
            fault = str(error).rsplit("; ", 1)[0]  # what follows says how to mend it
            if not any(sentence.startswith(fault) for sentence in refused):
                refused.append(str(error))

    path = attempt(lambda: resolve(name))
    folder = path if isinstance(path, Path) and path.is_dir() else None
    if folder is not None and (folder / "config.json").is_file():
        raw = attempt(partial(files.read_json, folder / "config.json")) or {}
        values |= {key: raw[key] for key in ("model_type", "architectures") if key in raw}
    checkpoint = attempt(lambda: Checkpoint.open(name)) if path is not None else None
    if checkpoint is not None:
        values["layout"] = checkpoint.recipe.name if checkpoint.recipe else "glassformer"
        values |= {"base": checkpoint.base} if checkpoint.base else {}
        parameters = cost(checkpoint.config).total
        values["parameters"] = parameters
        values["memory_float32"] = memory.gibibytes(4 * parameters)
        values["memory_bfloat16"] = memory.gibibytes(2 * parameters)
        attempt(checkpoint.check)
    tokenizer: Any = None
    template: Any = None
    if folder is not None:
        if checkpoint is None or checkpoint.base is None:
            headers = attempt(partial(read_headers, folder))
            tensors = headers.entries.values() if headers else ()
            values["tensors"] = len(tensors)
            values["dtypes"] = sorted({entry.dtype for entry in tensors})
            sizes = {file: file.stat().st_size for file in {entry.path for entry in tensors}}
            values["files"] = [
                f"{file.name} ({memory.gibibytes(size)})" for file, size in sorted(sizes.items())
            ]
        tokenizer = attempt(partial(open_tokenizer, folder))
        template = attempt(partial(chat_template.find, folder))
    elif isinstance(path, Path):
        values["layout"] = "gguf"
        contents: Any = attempt(partial(read_gguf, path)) or ({}, {})
        fields, places = contents
        values["model_type"] = fields.get("general.architecture")
        values |= {"tensors": len(places), "dtypes": sorted({p.kind for p in places.values()})}
        tokenizer = attempt(checkpoint.tokenizer) if checkpoint is not None else None
        template = fields.get("tokenizer.chat_template")
    kind = tokenizer and (tokenizer.spec.get("model") or {}).get("type")
    values["tokenizer"] = tokenizer and f"{kind}, {tokenizer.size:,} tokens"
    values["chat_template"] = template is not None
    if template is not None and tokenizer is not None:
        attempt(lambda: chat_template.ChatTemplate(template, tokenizer))
    return values | {"loads": not refused, "refused": refused}


def system_info() -> dict[str, Any]:
    """Returns versions, processor, kernels, threads and memory of this machine by name."""
    import os
    import platform

    import torch

    from ..core.memory import available_memory
    from ..fast import device, kernels
    from ..fast.kernels import shared_library

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
        "builds": shared_library.builds(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "thread_pool": "torch's" if shared_library.pool().value else None,
        "memory_free_gb": None if free is None else round(free / 1e9, 1),
        "memory_read_gb_per_s": round(memory_speed(), 1),
        "device": device.title(device.find()),
    }


def advice_for(values: dict[str, Any]) -> list[str]:
    """Returns advice on the findings, a sentence or two each; none where all is well."""
    advice = []
    if values["kernels"] == "torch":
        advice.append(COMPILE if "not there" in values["why"] else values["why"])
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
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)

"""The device that computes: the one that is asked for, or the GPU where there is one."""

from __future__ import annotations

import re

import torch

from ..core.errors import UserError, need


def find(name: str | None = None) -> torch.device:
    """The device that ``name`` means: cpu, cuda, cuda:1 or mps; None: CUDA's first, or the CPU.

    MPS is taken only when it is asked for: nothing has been measured on it. UserError for one that
    is not there.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device_counts = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    match = re.fullmatch(r"(\w+)(?::(\d{1,4}))?", name)
    if match is None or match[1] not in device_counts:
        raise UserError(f'There is no device "{name}"; give cpu, cuda, cuda:1 or mps.')
    available = [
        kind if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        for kind, count in device_counts.items()
        if count
    ]
    sentence = f"This machine has no device {name} that torch {torch.__version__} can use; there is"
    need(int(match[2] or 0) < device_counts[match[1]], f"{sentence} {', '.join(available)}.")
    return torch.device(name)


def title(device: torch.device) -> str:
    """A device as people call it: ``cuda:0 (NVIDIA H100)``."""
    return (
        f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    )

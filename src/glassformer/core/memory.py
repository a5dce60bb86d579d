"""Free memory, and a number of bytes in words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def gibibytes(count: float) -> str:
    """A number of bytes in the unit that suits it: 14.96 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} bytes" if unit == "bytes" else f"{count:,.2f} {unit}"
        count /= 1024
    return f"{count:,.2f} TiB"


def available_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes still free on a device, None where it cannot be told; a container's limit counts."""
    import torch

    target = torch.device(device)
    if target.type == "cuda":
        return torch.cuda.mem_get_info(target)[0]
    if target.type != "cpu":
        return None
    free = [limit for limit in (_free_on_machine(), _free_in_container()) if limit is not None]
    return min(free, default=None)


def _free_on_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _free_in_container() -> int | None:
    home = Path("/sys/fs/cgroup")
    for limit, usage, statistics in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            most, now = int((home / limit).read_text()), int((home / usage).read_text())
            lines = (home / statistics).read_text().splitlines()
        except (OSError, ValueError):
            continue
        pages = {name: int(value) for name, value in (line.split() for line in lines)}
        return most - now + pages.get("inactive_file", 0)  # the cache of files gives way
    return None

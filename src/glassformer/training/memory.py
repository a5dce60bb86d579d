"""How this process takes memory from the system while it trains on a CPU, and how much it held at most."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import platform
import re
import resource
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)


@functools.cache
def keep_freed_memory() -> bool:
    """Let the allocator keep what is freed for the next step; whether it could be told to.

    glibc otherwise gives every big block back to the system at once, and each step pays for it again, page by page.
    What the process holds at its peak stays the same; it only holds it until it ends.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def reset_peak_memory() -> None:
    """Give back what is free, and let ``peak_memory`` count from now on where the system can: on Linux."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak is what is held now


def peak_memory() -> int:
    """The most bytes that this process held since ``reset_peak_memory``, or, where that cannot be told, ever."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

"""The allocator of a process that trains on a CPU, and the memory that the process held
at most."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import platform
import re
import resource
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # mallopt(3)
LARGE = 1 << 20  # bytes of a block that a training on several processes gives back


@functools.cache
def keep_freed_memory(several: bool = False) -> bool:
    """Let the allocator keep what is freed for the next step; whether it could be told to.

    glibc otherwise gives every big block back to the system at once, and each step pays for it
    again, page by page. What the process holds at its peak stays the same; it only holds it until
    it ends.

    Not so on ``several`` processes, where blocks of weights come and go all the time. A block is
    aligned by asking for more than it keeps, so it never fits where one of its size was freed: with
    25 M parameters on two processes half of the heap were such holes (docs/scale.md). There what is
    ``LARGE`` goes back, or what is as large as the user says by glibc's own MALLOC_MMAP_THRESHOLD_.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # 1 << 16 is glibc's own
    options = [(M_TRIM_THRESHOLD, 2**31 - 1), (M_MMAP_MAX, 1 << 16 if several else 0)]
    options += (
        [(M_MMAP_THRESHOLD, LARGE)]
        if several and "MALLOC_MMAP_THRESHOLD_" not in os.environ
        else []
    )
    return sum(bool(mallopt(*setting)) for setting in options) == len(options)


def reset_peak_memory() -> None:
    """Give back what is free, and let ``peak_memory`` count from now on where the system can: on
    Linux."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak is what is held now


def peak_memory() -> int:
    """The most bytes that this process held since ``reset_peak_memory``, or, where that cannot be
    told, ever."""
    with contextlib.suppress(OSError):
        match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if match:
            return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )

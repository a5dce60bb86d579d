"""How this process takes memory from the system, while it trains on a CPU."""

from __future__ import annotations

import ctypes
import functools
import platform

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

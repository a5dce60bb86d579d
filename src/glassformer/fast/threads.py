"""The cores that a process may use, and the way in which OpenMP's threads wait for each other."""

from __future__ import annotations

import os
import sys

# No pathlib up here: `glassformer --help` imports this file.

# looks at a variable before an OpenMP thread sleeps; libgomp's own 300,000 take milliseconds of a
# core
SPIN = 3000
# what a user sets to say how they wait; other variables of OpenMP are set by libraries, too
WAITING = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"}
GROUPS = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"


def prepare() -> None:
    """Set what OpenMP reads once, when torch is loaded, unless the user has set it; an empty value
    sets nothing.

    On a busy machine threads that spin at every barrier take the cores from those they wait for.
    """
    if "torch" in sys.modules:
        return
    named = {name for name, value in os.environ.items() if value.strip()}
    if not WAITING & named:
        os.environ["GOMP_SPINCOUNT"] = str(SPIN)
    if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & named and cores() < (os.cpu_count() or 1):
        os.environ["OMP_NUM_THREADS"] = str(cores())


def cores() -> int:
    """The cores that this process may use: by its affinity, and by its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, -int(-min(_quota(), allowed) // 1))


def _quota() -> float:
    """Cores that the control groups around this process grant (version 1 or 2), or infinity."""
    quota = float("inf")
    for line in _read(MEMBERSHIP).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        home = f"{GROUPS}/cpu" if controllers else GROUPS
        names = [name for name in path.split("/") if name]
        # each group around it; a container may see its path from outside
        for depth in range(len(names) + 1):
            folder = "/".join([home, *names[:depth]])
            if controllers:
                words = [
                    _read(f"{folder}/{name}") for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                ]
            else:
                words = _read(f"{folder}/cpu.max").split()
            if (
                len(words) == 2
                and all(word.strip().isdecimal() for word in words)
                and int(words[1])
            ):
                quota = min(quota, int(words[0]) / int(words[1]))
    return quota


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return file.read()
    except (OSError, ValueError):
        return ""

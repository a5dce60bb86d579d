"""The processes that came of this one, as Linux shows them: what they take, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from pathlib import Path

DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux


def set_process_option(option: int, value: int) -> None:
    """``prctl`` of Linux; nothing elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> dict[int, float]:
    """The processes that came of this one, each with the seconds that it has computed; none where
    there is no /proc."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            # its ended children's too
            seconds[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    pids = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return {pid: seconds[pid] for pid in pids - {os.getpid()}}


def anonymous_memory(pid: int) -> int:
    """Bytes in memory that no file holds; 0 where they cannot be read."""
    with contextlib.suppress(OSError):
        size = re.search(
            r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(errors="replace")
        )
        return int(size[1]) << 10 if size else 0
    return 0


def end_all(child: int) -> None:
    """End a job's processes, also those that left its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    for _ in range(100):
        processes = descendants()
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.001)
            continue
        return

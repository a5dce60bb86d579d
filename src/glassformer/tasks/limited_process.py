"""Code that is not ours, run in processes with limits: a worker that is kept (``LimitedWorker``), a fork of
it for each job (``supervise``).

A job is in a session of its own, without input, its printing caught. The limits of computing time,
memory and number of processes hold for it and all that it starts together, that of a file's size
for each file. This guards against accidents. It is no sandbox: the code runs with the user's rights,
may read, write and remove the user's files, end the user's processes, use the network, and can forge
what its job answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..core.errors import UserError
from ..formats.extend import load_module as load_module

MOST = 10_000  # bytes of printing that are kept
MEMORY = 2 << 30  # bytes that a job may take beyond what is loaded
FILE = 64 << 20  # bytes that it may write into one file
PROCESSES = 64  # that it may have at a time
LONGEST = 1 << 20  # bytes of an answer
# seconds on the wall for each of the processor's: others compute here too, and who sleeps computes
# nothing
WALL = 5
GRACE = 3.0  # seconds between a job's own clock and its end by the worker
LOOK = 0.2  # seconds between two looks at what the processes of a job take
EXTRA_SECONDS = 60  # seconds beyond a job's own limit, on a busy machine
MARK = "GLASSFORMER_WORKER"  # environment variable of a worker and all that it starts
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


@dataclass(frozen=True)
class Outcome:
    """The end of a job: ``data`` that it wrote to its descriptor, what it ``printed``, ``seconds`` by
    the clock, and what it took too much of (time, memory, processes, or nothing)."""

    data: bytes
    printed: str
    seconds: float
    excess: str = ""


def supervise(
    run: Callable[[int], NoReturn], seconds: float, is_whole: Callable[[bytes], bool]
) -> Outcome:
    """Fork for one job, catch what it prints, end it in time, with all that it started.

    ``run`` gets the descriptor to answer to and ends the process; ``is_whole`` is true of a whole
    answer; ``seconds`` are of computing.
    """
    start = time.monotonic()
    (printed_end, out), (reader, writer) = os.pipe(), os.pipe()
    sys.stdout.flush()
    worker, child = os.getpid(), os.fork()
    if child == 0:
        _isolate(worker, out, writer)
        run(writer)
    os.close(out)
    os.close(writer)
    printed, data, excess, is_answered = bytearray(), bytearray(), "", False
    collector = threading.Thread(target=_collect, args=(printed_end, printed), daemon=True)
    collector.start()
    deadline = start + WALL * seconds + GRACE
    try:
        while not (excess or is_answered) and time.monotonic() < deadline:
            if select.select([reader], [], [], LOOK)[0]:
                chunk = os.read(reader, 1 << 16)
                if not chunk or len(data) > LONGEST:
                    break
                data += chunk
                is_answered = is_whole(bytes(data))
            else:
                excess = _excess(seconds, child)
    finally:
        end_all(child)
        collector.join(1)
        os.close(printed_end)
        os.close(reader)
    took = time.monotonic() - start
    if not (excess or data) and took >= seconds:
        excess = "time"
    text = printed[:MOST].decode("utf-8", "replace") + ("\n..." if len(printed) > MOST else "")
    return Outcome(bytes(data), text, round(took, 2), excess)


def limit(seconds: float) -> None:
    """Bound what this process may take; RLIMIT_DATA is held by Linux alone."""
    import resource

    data = MEMORY
    with contextlib.suppress(OSError):
        match = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
        data += int(match[1]) << 10 if match else 0
    processor = int(WALL * seconds + GRACE + 60)  # where nobody is left to stop it
    for kind, most in (
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_FSIZE, FILE),
        (resource.RLIMIT_CPU, processor),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _excess(seconds: float, child: int) -> str:
    """Names the limit that a job's processes together exceed, if any."""
    processes = descendants()
    computed = sum(processes.values())
    if computed > seconds + GRACE:
        return "time"
    if computed > seconds and len(processes) > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGPROF)  # as its own clock does when it computes alone
    if len(processes) > PROCESSES:
        return "processes"
    loaded = anonymous_memory(os.getpid())  # a fork holds what is loaded here
    taken = sum(max(0, anonymous_memory(pid) - loaded) for pid in processes)
    return "memory" if taken > MEMORY else ""


def _isolate(worker: int, out: int, answer: int) -> None:
    """In the fork: a session of its own, no input, printing into ``out``, and none of the worker's
    pipes but ``answer``."""
    os.setsid()
    set_process_option(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(1)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    for end in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):
            if end > 2 and end != answer:
                os.close(end)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout, sys.stderr = (
        open(end, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        for end in (1, 2)
    )


def _collect(end: int, printed: bytearray) -> None:
    """Read a pipe to its end; the beginning is kept."""
    while data := os.read(end, 1 << 16):
        printed += data[: MOST + 1 - len(printed)]


def jobs() -> Iterator[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]]:
    """In the worker: yields each job and the function that answers it, until there are no more. At
    Ctrl-C the worker's owner ends it, and with it the job under way."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print("ready", file=channel, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        number = job.pop("job")

        def answer(result: dict[str, Any], number: str = number) -> None:
            print(json.dumps({**result, "job": number}), file=channel, flush=True)

        yield job, answer


def prepare_worker() -> None:
    """In the worker, before it loads what its jobs need."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    set_process_option(ADOPT_ORPHANS, 1)  # so that no process of a job is lost from sight


class LimitedWorker:
    """A process that is kept for as many jobs as there are; it starts with the first."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command, self.mark = command, secrets.token_hex(16)
        self._process: subprocess.Popen[str] | None = None

    def ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The worker's answer to a job of so many seconds of computing; None where the job's code
        ended or stopped the worker, which the next job then starts anew."""
        number = secrets.token_hex(16)
        try:
            process = self._process or self._start()
            print(json.dumps({**job, "job": number}), file=process.stdin, flush=True)
            line = _read_line(process, WALL * seconds + GRACE + EXTRA_SECONDS)
            answer: dict[str, Any] = json.loads(line)
            if answer.pop("job") != number:  # a job's code wrote into the worker's pipe
                raise ConnectionError
        except (OSError, ValueError, KeyError, RecursionError):
            self.close()
            return None
        except BaseException:
            self.close()
            raise
        return answer

    def _start(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, MARK: self.mark}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
        # Ctrl-C comes to us alone
        self._process = subprocess.Popen(self.command, env=env, start_new_session=True, **pipes)
        try:
            _read_line(self._process, 10 * EXTRA_SECONDS)
        except OSError:
            raise UserError(
                "The process that runs code with limits has ended; run glassformer doctor, "
                "then try again."
            ) from None
        return self._process

    def close(self) -> None:
        """End the worker, and with it the job under way."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:  # stopped, or in the middle of a long import
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = None
        _end_marked(f"{MARK}={self.mark}".encode())


def _end_marked(mark: bytes) -> None:
    """End what a job of a worker that is gone left behind."""
    for _ in range(100):
        is_clear = True
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    is_clear = False
                    os.kill(int(path.parent.name), signal.SIGKILL)
        if is_clear:
            return
        time.sleep(0.001)


def _read_line(worker: subprocess.Popen[str], seconds: float) -> str:
    """The worker's next line; OSError where it is gone, or does not answer in time."""
    assert worker.stdout is not None
    if not select.select([worker.stdout], [], [], seconds)[0]:
        raise TimeoutError
    line = worker.stdout.readline()
    if not line.endswith("\n"):
        raise ConnectionError
    return line

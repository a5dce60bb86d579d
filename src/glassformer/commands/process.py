"""Commands in processes of their own: what they print, the memory they hold, and signals that reach them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import need

PROGRAM = (sys.executable, "-m", "glassformer")
PASSED = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM}
if hasattr(signal, "SIGHUP"):  # not on Windows
    PASSED[signal.SIGHUP] = signal.SIGTERM


def answer(words: Sequence[str]) -> tuple[dict[str, Any], int]:
    """What a command prints as JSON, and the most memory it held, in bytes."""
    with started(words, subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        code, peak = ended(process)
    succeeded(words, code)
    return json.loads(said), peak


def alone(words: Sequence[str], stopped: Sequence[int] = ()) -> tuple[int, int]:
    """A command's exit code and the most memory it held, in bytes; what it prints goes to standard error.

    UserError unless the code is 0 or among those of a command that was ``stopped``.
    """
    with started(words, sys.stderr) as process:
        code, peak = ended(process)
    if code not in stopped:
        succeeded(words, code)
    return code, peak


def succeeded(words: Sequence[str], code: int) -> None:
    """Nothing for a code of 0; the way that this command is to end for another one."""
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code in (143, -signal.SIGTERM):
        raise SystemExit(143)
    need(code == 0, f"glassformer {' '.join(words[:2])} failed; see above.")


@contextlib.contextmanager
def started(words: Sequence[str], output: Any) -> Iterator[subprocess.Popen[Any]]:
    """A command at work. It has a process group of its own: a signal reaches it from here, once, whoever sent it."""
    held: list[int] = []  # signals, until there is somebody to pass them on to
    process: subprocess.Popen[Any] | None = None

    def send(number: int) -> None:
        if process is None:
            held.append(number)
        elif process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def pause(number: int, frame: object) -> None:  # Ctrl-Z
        send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        send(signal.SIGCONT)

    def hand_on(number: int, frame: object) -> None:
        send(PASSED[signal.Signals(number)])

    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for kind, handler in {**dict.fromkeys(PASSED, hand_on), signal.SIGTSTP: pause}.items():
            ignored = signal.getsignal(kind) is signal.SIG_IGN  # a closed terminal, under nohup
            if not ignored or kind in (signal.SIGINT, signal.SIGTERM):  # a training hears those two always
                old[kind] = signal.signal(kind, handler)
    try:
        process = subprocess.Popen([*PROGRAM, *words], stdout=output, text=True, process_group=0)
        for number in held:
            send(number)
        yield process
    finally:
        for one, handler in old.items():
            signal.signal(one, handler)


def ended(process: subprocess.Popen[Any]) -> tuple[int, int]:
    """Wait for a process: its exit code and the most memory it held, in bytes."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

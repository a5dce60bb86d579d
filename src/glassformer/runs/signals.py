"""Means to stop or hold a run from outside: signals, and the files ``stop`` and ``pause`` in
its folder."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ..core import files
from ..core.config.run import PAUSE, PAUSED, STOP
from ..core.errors import need, note
from ..scale.mesh import ALONE, Mesh

PULSE = 5.0  # seconds between signs of life of a run that waits
LOOK = 0.1  # seconds between two looks at the files of a run that waits


class Signals:
    """While entered, the first Ctrl-C, SIGTERM or SIGHUP is only noted in ``number``; a second
    Ctrl-C interrupts.

    A SIGHUP that is ignored, as under nohup, stays so. A file ``stop`` that comes to be in
    ``folder`` meanwhile counts as a SIGTERM, and while a file ``pause`` is there the run can
    ``wait``: who shares the folder can end or hold the run, on another machine too. Both are taken
    away at the beginning and at the end: they are of one run alone. Of several processes the first
    one looks at the files, and signals are only noted however often: torchrun passes on what the
    terminal has sent already.
    """

    def __init__(self, folder: Path, mesh: Mesh = ALONE) -> None:
        self.stop = folder / STOP
        self.pause = folder / PAUSE
        self.mesh = mesh
        self.number: int | None = None
        self.old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._clear()
        if threading.current_thread() is threading.main_thread():
            heard = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                heard.append(signal.SIGHUP)
            self.old = {number: signal.signal(number, self.notice) for number in heard}
        return self

    def _clear(self) -> None:
        if self.mesh.is_first:
            for path in (self.stop, self.pause):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def heard(self) -> int | None:
        """The signal that any process heard so far."""
        if self.number is None and self.mesh.is_first and self.stop.exists():
            self._clear()
            note(f"{self.stop} asks this run to stop: saving.")
            self.number = signal.SIGTERM
        if not self.mesh.alone:
            self.number = int(self.mesh.maximum(self.number or 0)) or None
        return self.number

    def wait(self) -> float:
        """Wait as long as the run is paused and nothing ends it, all processes together; the
        seconds that it took."""
        start = last_pulse = time.monotonic()
        paused = False
        while self._holds() and self.heard() is None:
            if self.mesh.is_first and not paused:
                note(
                    f"Paused by {self.pause}: it goes on when that file is gone. Ctrl-C saves and "
                    "ends."
                )
            if self.mesh.is_first and (not paused or time.monotonic() - last_pulse > PULSE):
                last_pulse = time.monotonic()
                # made by others, never by the run
                with contextlib.suppress(OSError), self.pause.open("r+") as opened:
                    opened.write(PAUSED)
                    opened.truncate()
            paused = True
            time.sleep(LOOK if self.mesh.alone else 10 * LOOK)
        if paused and self.number is None:
            note("Going on.")
        return time.monotonic() - start if paused else 0.0

    def _holds(self) -> bool:
        """True on every process while the first one finds the file ``pause``."""
        paused = self.mesh.is_first and self.pause.exists()
        return paused if self.mesh.alone else bool(self.mesh.maximum(paused))

    def notice(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            if self.mesh.alone and number in (signal.SIGINT, signal.SIGTERM):
                raise KeyboardInterrupt
            return  # a terminal that closes says so more than once
        self.number = number
        note("Finishing this step, then saving; once more to stop at once.")

    def __exit__(self, *_: object) -> None:
        self._clear()
        for number, handler in self.old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def lock(folder: Path, purpose: str) -> Iterator[None]:
    """Hold ``folder`` for one process; UserError when another process holds it.

    The operating system drops the lock when the process ends, however it ends. A folder that was
    made for it and in which nothing came to be is removed again.
    """
    is_new, path = not folder.exists(), folder / ".lock"
    files.make_folder(folder)
    with files.explain_errors(folder):
        file = path.open("a+")
    with file:
        need(
            files.try_lock(file, path),
            f"Another process is {purpose} in {folder}; wait for it to end or "
            "choose another folder.",
        )
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    if list(folder.iterdir()) == [path]:
                        path.unlink()
                        folder.rmdir()

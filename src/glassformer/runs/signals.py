"""What stops or holds a run from outside: signals, and the files ``stop`` and ``pause`` in its
folder."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ..core.config.run import PAUSE, PAUSED, STOP
from ..core.errors import note
from ..scale.mesh import Mesh

PULSE = 5.0  # seconds between signs of life of a run that waits


class Signals:
    """While entered, the first Ctrl-C, SIGTERM or SIGHUP is only noted in ``number``; a second
    Ctrl-C interrupts.

    A SIGHUP that is ignored, as under nohup, stays so. A file ``stop`` that comes to be in
    ``folder`` meanwhile counts as a SIGTERM, and while a file ``pause`` is there the run can
    ``wait``: who shares the folder can end or hold the run, on another machine too. Both are taken
    away at the beginning and at the end: they are of one run alone.
    """

    def __init__(self, folder: Path | None = None, patient: bool = False) -> None:
        """``patient``: only noted however often; torchrun passes on what the terminal has sent
        already."""
        self.stop: Path | None = None if folder is None else folder / STOP
        self.pause: Path | None = None if folder is None else folder / PAUSE
        self.patient, self.paused = patient, False
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
        for path in (self.stop, self.pause):
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def heard(self) -> int | None:
        """The signal so far."""
        if self.number is None and self.stop is not None and self.stop.exists():
            self._clear()
            note(f"{self.stop} asks this run to stop: saving.")
            self.number = signal.SIGTERM
        return self.number

    def heard_by(self, mesh: Mesh) -> int | None:
        """The signal that any process heard so far."""
        if not mesh.alone:
            self.number = int(mesh.maximum(self.heard() or 0)) or None
        return self.heard()

    def wait_with(self, mesh: Mesh) -> float:
        """``wait``, of all processes together: none waits for another longer than a second."""
        if mesh.alone:
            return self.wait()
        start = time.monotonic()
        while mesh.maximum(self.wait(1.0)) and not mesh.maximum(self.number or 0):
            pass
        return time.monotonic() - start if mesh.is_first else 0.0

    def wait(self, timeout: float = math.inf) -> float:
        """Wait as long as the run is paused and nothing ends it, or ``timeout`` seconds; the
        seconds that it took."""
        if self.pause is None or self.number is not None or not self.pause.exists():
            if self.paused and self.number is None:
                note("Going on.")
            self.paused = False
            return 0.0
        start, last_pulse = time.monotonic(), -math.inf
        if not self.paused:
            note(
                f"Paused by {self.pause}: it goes on when that file is gone. Ctrl-C saves and ends."
            )
        self.paused = True
        while self.heard() is None and self.pause.exists() and time.monotonic() < start + timeout:
            if time.monotonic() - last_pulse > PULSE:
                last_pulse = time.monotonic()
                # made by others, never by the run
                with contextlib.suppress(OSError), self.pause.open("r+") as opened:
                    opened.write(PAUSED)
                    opened.truncate()
            time.sleep(0.1)
        if timeout == math.inf and self.number is None:
            self.paused = False
            note("Going on.")
        return time.monotonic() - start

    def notice(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            if not self.patient and number in (signal.SIGINT, signal.SIGTERM):
                raise KeyboardInterrupt
            return  # a terminal that closes says so more than once
        self.number = number
        note("Finishing this step, then saving; once more to stop at once.")

    def __exit__(self, *_: object) -> None:
        self._clear()
        for number, handler in self.old.items():
            signal.signal(number, handler)

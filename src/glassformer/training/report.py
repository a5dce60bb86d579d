"""What a run says of itself, in lines on standard error. No torch here."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


def note(text: str) -> None:
    """A line for the reader, on standard error; where that is closed, full or gone, the work goes on without."""
    if sys.stderr is not None:  # None where it was closed before we began
        try:
            print(text, file=sys.stderr, flush=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a signal came in the middle of another line
            with contextlib.suppress(OSError):
                sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def duration(seconds: float) -> str:
    """A time span in the unit a person would say."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"

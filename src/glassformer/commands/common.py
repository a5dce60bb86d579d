"""Files and folders that commands write, and counts in a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..core import files
from ..core.errors import UserError, need
from ..core.errors import note as note
from ..sight import text_table as text_table

REPORT_INTERVAL = 30.0  # seconds without a word on standard error, where it is not a terminal


def write_picture(out: str | Path, content: str | bytes) -> None:
    """Writes a picture to the file ``out`` and prints its name; ``-`` is standard output."""
    data = content.encode() if isinstance(content, str) else content
    if str(out) == "-":
        sys.stdout.buffer.write(data)
    else:
        files.write(Path(out), data)
        print(out)


def count_noun(number: int, noun: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def progress_counter(noun: str = "tokens") -> Callable[[int], None]:
    """Returns a function that shows a running count in the terminal, or notes it every 30 seconds
    where standard error is none."""
    if is_terminal():
        return lambda done: print(f"\r{done:,} {noun}", end="\r", file=sys.stderr, flush=True)
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_INTERVAL:
            last = time.monotonic()
            note(f"{done:,} {noun} so far")

    return report


def new_file(out: str | Path, *inputs: str | Path | None) -> Path:
    """Returns the path of an output file; UserError for a folder and for one of the ``inputs``."""
    path = Path(out)
    need(not path.is_dir(), f"--out {path} is a folder; give the name of a file in it.")
    if path.exists() and any(
        name is not None and Path(name).exists() and path.samefile(name) for name in inputs
    ):
        raise UserError(
            f"--out {path} would overwrite an input of this command; give another name."
        )
    return path


def new_folder(out: str | Path) -> Path:
    """Returns the path of an output folder; UserError where it holds a run or a model."""
    path = Path(out)
    for kind, names in (
        ("run", ("run.json", "step-*")),
        ("model", ("config.json", "*.safetensors")),
    ):
        if path.is_dir() and any(next(path.glob(name), None) is not None for name in names):
            raise UserError(f"{path} holds a {kind} already; choose another folder.")
    return path


def is_terminal() -> bool:
    """Standard error is a terminal in which a line can be overwritten."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def supports_colour() -> bool:
    """Standard output is a terminal with colours, and NO_COLOR is not set."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "unknown")
    )


def ascii_only() -> bool:
    """Standard output cannot encode block characters."""
    try:
        "█▓▒░·".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False

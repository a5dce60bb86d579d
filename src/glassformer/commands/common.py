"""What the commands share: words for options, how results and notes are printed, a model with its tokenizer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError

MODEL = "a folder, a hub name or a recipe such as glass/1m"


def reader(name: str, dtype: str | None = None) -> tuple[Any, Any]:
    """A model and the tokenizer it needs to read text; UserError where it has none."""
    from .. import places, store

    if said := places.of_run(name):
        note(said)
    model, tokenizer = store.load(name, dtype=dtype)
    if tokenizer is None:
        raise UserError(f"{name} has no tokenizer, so text cannot be read; load a folder that has one.")
    return model, tokenizer


def standard_input() -> str:
    """All of standard input; UserError where it is no text."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not {error.encoding} text (byte {error.start}); convert it.") from None


def counted(number: int, what: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def emit(value: Any) -> None:
    """A result as JSON."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def rows(*pairs: tuple[str, str]) -> None:
    """Names and values, one pair a line."""
    for name, value in pairs:
        print(f"{name:14} {value}")


def counting(what: str = "tokens") -> Callable[[int], None] | None:
    """A count that runs in the terminal; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        return None
    return lambda done: print(f"\r{done:,} {what}", end="\r", file=sys.stderr, flush=True)


def unescaped(text: str) -> str:
    """A text in which \\n is a new line."""
    return text.replace("\\n", "\n")


def new_file(out: str | Path, *read: str | Path | None) -> Path:
    """Where a file may be written: no folder, and none of those that are read for it."""
    path = Path(out)
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it.")
    if path.exists() and any(name is not None and Path(name).exists() and path.samefile(name) for name in read):
        raise UserError(f"{path} is what is read here, and would be written over; give another name.")
    return path


def new_folder(out: str | Path) -> Path:
    """Where a model may be saved: a folder without a run or a model in it."""
    path = Path(out)
    for kind, names in (("run", ("run.json", "step-*")), ("model", ("config.json", "*.safetensors"))):
        if path.is_dir() and any(next(path.glob(name), None) is not None for name in names):
            raise UserError(f"{path} holds a {kind} already; choose another folder.")
    return path


def note(line: str) -> None:
    """Something about the work, not its result."""
    print(line, file=sys.stderr)


def ascii_only() -> bool:
    """Whether standard output cannot show blocks."""
    try:
        "█▓▒░·".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False

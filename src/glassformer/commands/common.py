"""What the commands share: words for options, how results and notes are printed, a model with its
tokenizer."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..errors import UserError, need
from ..errors import note as note

MODEL = "a folder, a hub name or a recipe such as glass/1m"
SILENCE = 30.0  # seconds without a word on standard error, where it is not a terminal
TEXTS = "one or several; - is standard input, one text"


def using(one: argparse.ArgumentParser) -> None:
    """The option of every command that reads a model or a run file; what it names is run before the
    command."""
    said = "first run a Python file of your own, which adds mechanisms or recipes; may be repeated"
    one.add_argument("--use", action="append", default=[], metavar="FILE.py", help=said)


def computing(one: argparse.ArgumentParser, device: str = "the GPU where there is one") -> None:
    """The options of every command that computes with a model, on this ``device`` where none is
    named."""
    using(one)
    one.add_argument("--device", metavar="D", help=f"cpu, cuda, cuda:1 or mps ({device})")
    one.add_argument(
        "--dtype", metavar="D", help="float32, bfloat16 or float16 (the checkpoint's own)"
    )


def engine_device(given: argparse.Namespace) -> str:
    """Where an engine computes: on the device that is named, which is there, or on the CPU, where
    it was measured."""
    from ..nn import device as devices

    there = devices.find(given.device)
    if given.device is not None or there.type == "cpu":
        return str(there)
    note(f"The engine computes on the CPU; --device {there.type} takes the GPU.")
    return "cpu"


def editing(one: argparse.ArgumentParser) -> None:
    """The option of every command that can change what a model computes."""
    said = (
        'change the run, as in Python: head_off("decoder.blocks.3.attn", 4); may be repeated '
        "(docs/sight.md)"
    )
    one.add_argument("--edit", action="append", default=[], metavar="EDIT", help=said)


def edits_of(given: argparse.Namespace) -> list[Any]:
    """What --edit says, in its order."""
    from ..inspection import edits

    return [edits.parse(text) for text in given.edit]


def with_edits(edits: Sequence[Any]) -> str:
    """What is said behind a result's name where the run was changed."""
    return f", with {' and '.join(map(repr, edits))}" if edits else ""


def model_and_tokenizer(given: argparse.Namespace) -> tuple[Any, Any]:
    """The model and the tokenizer it needs to read text; UserError where it has none."""
    model, tokenizer = loaded(given)
    if tokenizer is None:
        from ..checkpoints import resolve

        adding = (
            f", or add it: glassformer convert {shlex.quote(given.model)} --tokenizer NAME "
            "--out NEW_FOLDER"
        )
        shape, adding = (
            (": it is an untrained shape", "") if resolve.is_recipe(given.model) else ("", adding)
        )
        none = f"{given.model} has no tokenizer{shape}"
        raise UserError(f"{none}, so text cannot be read; load a folder that has one{adding}.")
    return model, tokenizer


def loaded(given: argparse.Namespace, **how: Any) -> tuple[Any, Any]:
    """The model that is asked for, on the device and in the dtype that are, with its tokenizer."""
    from ..checkpoints import resolve, store
    from ..nn import device as devices

    if said := resolve.of_run(given.model):
        note(said)
    device = devices.find(given.device)
    model, tokenizer = store.load(given.model, dtype=given.dtype, device=device, **how)
    if given.device or given.dtype or device.type != "cpu":  # else there was nothing to choose
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        note(f"{given.model} computes on {devices.title(device)} in {kind}.")
    return model, tokenizer


def objective_of(model: str) -> str | None:
    """The objective of the run that a folder, or one of its checkpoints, comes from; None where
    that is not known."""
    from ..config.run_file import begun

    path = Path(model).expanduser()
    told = begun(path) or begun(path.parent)
    own = told["train"].get("objective", "Causal") if told else None
    return own.get("type", "Causal") if isinstance(own, dict) else own


def untrained(name: str) -> None:
    """Say of a recipe that its weights are drawn, not learned."""
    from ..checkpoints import resolve

    if resolve.is_recipe(name):
        note(f"{name} is an untrained shape: its weights are random.")


def prompting(one: argparse.ArgumentParser) -> None:
    """The option of every command that reads texts."""
    said = (
        "read texts from a file, one a line, or from JSONL (its text or prompt); - is "
        "standard input"
    )
    one.add_argument("--prompts", metavar="FILE", help=said)


def reading(one: argparse.ArgumentParser, shown: str = TEXTS, batch: bool = True) -> None:
    """The arguments of every command that has a model read texts: the model, the texts, how many at
    once."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", nargs="*", metavar="TEXT", help=shown)
    prompting(one)
    if batch:
        one.add_argument("--batch", type=int, default=32, metavar="N", help="texts at once (32)")


def truncating(one: argparse.ArgumentParser) -> None:
    """The option of commands that read each text in one piece."""
    one.add_argument(
        "--truncate",
        action="store_true",
        help="cut the end off texts too long for the model (refused)",
    )


def texts(given: argparse.Namespace, said: Sequence[str]) -> list[str]:
    """The texts on the command line, where ``-`` is all of standard input, and after them those of
    ``--prompts``."""
    found = [_one_text() if text == "-" else text for text in said]
    if given.prompts is None:
        return found
    piped = given.prompts == "-"
    name, content = (
        ("Standard input", standard_input()) if piped else (given.prompts, _content(given.prompts))
    )
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    need(lines != [""], f"{name} is empty; give a text a line.")
    if given.prompts.endswith((".jsonl", ".ndjson")) or lines[0].startswith('{"'):
        lines = [
            _of_json(line, f"{name}, line {n}") for n, line in enumerate(lines, 1) if line.strip()
        ]
    return found + lines


def _one_text() -> str:
    text = standard_input()
    lines = len(text.splitlines())
    if lines > 1:
        note(f"Standard input is one text of {lines:,} lines; --prompts - reads a text a line.")
    return text.removesuffix("\n")


def _content(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        hint = files.nearest_path(Path(name))
        raise UserError(
            f"{name} cannot be read ({error.strerror}); check the path.{hint}"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text (byte {error.start}); convert it.") from None


def _of_json(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where} is not valid JSON; fix that line.") from None
    text = value.get("text", value.get("prompt")) if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise UserError(f'{where} has no "text" or "prompt"; give {{"text": "..."}}.')
    return text


def standard_input() -> str:
    """All of standard input; UserError where it is not text."""
    need(sys.stdin is not None, "There is no standard input; give a text or a file.")
    try:
        text = sys.stdin.read()
        text.encode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"Standard input is not {error.encoding} text (byte {error.start}); convert it."
        ) from None
    except UnicodeEncodeError:
        raise UserError(
            "Standard input is not UTF-8 text; convert it, or set the terminal to UTF-8."
        ) from None
    return text


def file_or_input(name: str) -> str:
    """A file's name; for ``-`` that of one that holds standard input for as long as the program
    runs."""
    if name != "-":
        return name
    text, folder = standard_input(), Path(tempfile.mkdtemp(prefix="glassformer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / ("standard-input.jsonl" if text.startswith("{") else "standard-input.txt")
    path.write_text(text, encoding="utf-8")
    return str(path)


def picture(out: str | Path, content: str | bytes) -> None:
    """Put a picture in the file ``out``, and say where; ``-`` is standard output."""
    data = content.encode() if isinstance(content, str) else content
    if str(out) == "-":
        sys.stdout.buffer.write(data)
    else:
        files.write(Path(out), data)
        print(out)


def counted(number: int, what: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def emit(value: Any) -> None:
    """A result as JSON."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def table(
    rows: Iterable[Sequence[str]], heading: Sequence[str] = (), left: Collection[int] = (0,)
) -> None:
    """Print rows as columns; those numbered in ``left`` begin at the left, the others end at the
    right."""
    from ..inspection import tables

    print("\n".join(tables.lines(rows, heading, left)))


def rows(*pairs: tuple[str, str]) -> None:
    """Print names and values, one pair a line."""
    table(pairs, left=(0, 1))


def counting(what: str = "tokens") -> Callable[[int], None]:
    """A count that runs in the terminal; where standard error is none, a line of it every 30
    seconds."""
    if moving():
        return lambda done: print(f"\r{done:,} {what}", end="\r", file=sys.stderr, flush=True)
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= SILENCE:
            last = time.monotonic()
            note(f"{done:,} {what} so far")

    return report


def result(as_json: bool, value: Any, rows: Iterable[Sequence[str]], **layout: Any) -> None:
    """Print a result: ``value`` as JSON, else ``rows`` as a table (``layout`` as ``table`` takes
    it)."""
    if as_json:
        emit(value)
    else:
        table(rows, **layout)


def columns(text: str | None) -> dict[str, str]:
    """What --columns says, ``text=0,label=1``, as a table."""
    pairs = [part.partition("=") for part in (text or "").split(",") if text]
    if not all(equals and part and column for part, equals, column in pairs):
        raise UserError(f'--columns is "{text}"; give PART=COLUMN, such as text=0,label=1.')
    return {part.strip(): column.strip() for part, _, column in pairs}


def unescaped(text: str) -> str:
    """A text in which \\n is a new line."""
    return text.replace("\\n", "\n")


def new_file(out: str | Path, *read: str | Path | None) -> Path:
    """Where a file may be written: no folder, and none of those that are read for it."""
    path = Path(out)
    need(not path.is_dir(), f"--out {path} is a folder; give the name of a file in it.")
    if path.exists() and any(
        name is not None and Path(name).exists() and path.samefile(name) for name in read
    ):
        raise UserError(
            f"{path} is what is read here, and would be written over; give another name."
        )
    return path


def new_folder(out: str | Path) -> Path:
    """Where a model may be saved: a folder without a run or a model in it."""
    path = Path(out)
    for kind, names in (
        ("run", ("run.json", "step-*")),
        ("model", ("config.json", "*.safetensors")),
    ):
        if path.is_dir() and any(next(path.glob(name), None) is not None for name in names):
            raise UserError(f"{path} holds a {kind} already; choose another folder.")
    return path


def moving() -> bool:
    """Whether standard error is a terminal in which a line can be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def colours() -> bool:
    """Whether standard output shows colours, and whoever reads it wants them."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "unknown")
    )


def ascii_only() -> bool:
    """Whether standard output cannot show blocks."""
    try:
        "█▓▒░·".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False

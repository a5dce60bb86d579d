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
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..errors import UserError, need
from ..errors import note as note

MODEL_HELP = "a folder, a hub name or a recipe such as glass/1m"
REPORT_INTERVAL = 30.0  # seconds without a word on standard error, where it is not a terminal
TEXTS_HELP = "one or several; - is standard input, one text"


def add_use_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--use``, for every command that reads a model or a run file; the files named by it run
    before the command."""
    help = "first run a Python file of your own, which adds mechanisms or recipes; may be repeated"
    parser.add_argument("--use", action="append", default=[], metavar="FILE.py", help=help)


def add_device_options(
    parser: argparse.ArgumentParser, device: str = "the GPU where there is one"
) -> None:
    """Adds ``--use``, ``--device`` and ``--dtype``, for every command that computes with a model;
    ``device`` describes the default."""
    add_use_option(parser)
    parser.add_argument("--device", metavar="D", help=f"cpu, cuda, cuda:1 or mps ({device})")
    parser.add_argument(
        "--dtype", metavar="D", help="float32, bfloat16 or float16 (the checkpoint's own)"
    )


def engine_device(args: argparse.Namespace) -> str:
    """Returns the device for an engine: the one named by ``--device``, else the CPU, where its
    speed is measured."""
    from ..nn import device as devices

    default = devices.find(args.device)
    if args.device is not None or default.type == "cpu":
        return str(default)
    note(f"The engine computes on the CPU; --device {default.type} takes the GPU.")
    return "cpu"


def add_edit_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--edit``, for every command that can change a model's activations."""
    help = (
        'change the run, as in Python: head_off("decoder.blocks.3.attn", 4); may be repeated '
        "(docs/sight.md)"
    )
    parser.add_argument("--edit", action="append", default=[], metavar="EDIT", help=help)


def parse_edits(args: argparse.Namespace) -> list[Any]:
    """Returns the edits of ``--edit``, in order."""
    from ..inspection import edits

    return [edits.parse(text) for text in args.edit]


def edits_suffix(edits: Sequence[Any]) -> str:
    """Returns the suffix that names the edits behind a result's title; "" for none."""
    return f", with {' and '.join(map(repr, edits))}" if edits else ""


def load_model_and_tokenizer(args: argparse.Namespace) -> tuple[Any, Any]:
    """Returns the model and the tokenizer it needs to read text; UserError where it has none."""
    model, tokenizer = load_model(args)
    if tokenizer is None:
        from ..checkpoints import resolve

        adding = (
            f", or add it: glassformer convert {shlex.quote(args.model)} --tokenizer NAME "
            "--out NEW_FOLDER"
        )
        shape, adding = (
            (": it is an untrained shape", "") if resolve.is_recipe(args.model) else ("", adding)
        )
        none = f"{args.model} has no tokenizer{shape}"
        raise UserError(f"{none}, so text cannot be read; load a folder that has one{adding}.")
    return model, tokenizer


def load_model(args: argparse.Namespace, **options: Any) -> tuple[Any, Any]:
    """Returns the model on the device and in the dtype of the options, with its tokenizer or
    None."""
    from ..checkpoints import resolve, store
    from ..nn import device as devices

    if hint := resolve.of_run(args.model):
        note(hint)
    device = devices.find(args.device)
    model, tokenizer = store.load(args.model, dtype=args.dtype, device=device, **options)
    if args.device or args.dtype or device.type != "cpu":  # else there was nothing to choose
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        note(f"{args.model} computes on {devices.title(device)} in {kind}.")
    return model, tokenizer


def run_objective(model: str) -> str | None:
    """Returns the objective of the run that a folder, or one of its checkpoints, comes from; None
    where it is unknown."""
    from ..config.run_file import saved_run

    path = Path(model).expanduser()
    settings = saved_run(path) or saved_run(path.parent)
    objective = settings["train"].get("objective", "Causal") if settings else None
    return objective.get("type", "Causal") if isinstance(objective, dict) else objective


def note_untrained(name: str) -> None:
    """Notes of a recipe that its weights are random."""
    from ..checkpoints import resolve

    if resolve.is_recipe(name):
        note(f"{name} is an untrained shape: its weights are random.")


def add_prompts_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--prompts``, for every command that reads texts."""
    help = (
        "read texts from a file, one a line, or from JSONL (its text or prompt); - is "
        "standard input"
    )
    parser.add_argument("--prompts", metavar="FILE", help=help)


def add_text_options(
    parser: argparse.ArgumentParser, help: str = TEXTS_HELP, batch: bool = True
) -> None:
    """Adds the model, the texts and ``--batch``, for every command that has a model read texts."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("text", nargs="*", metavar="TEXT", help=help)
    add_prompts_option(parser)
    if batch:
        parser.add_argument("--batch", type=int, default=32, metavar="N", help="texts at once (32)")


def add_truncate_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--truncate``, for commands that read each text in one piece."""
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="cut the end off texts too long for the model (refused)",
    )


def texts(args: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Returns the texts on the command line, where ``-`` is all of standard input, and after them
    those of ``--prompts``."""
    inputs = [_read_single_text() if text == "-" else text for text in arguments]
    if args.prompts is None:
        return inputs
    piped = args.prompts == "-"
    name, content = (
        ("Standard input", standard_input()) if piped else (args.prompts, _read_text(args.prompts))
    )
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    need(lines != [""], f"{name} is empty; give a text a line.")
    if args.prompts.endswith((".jsonl", ".ndjson")) or lines[0].startswith('{"'):
        lines = [
            _text_from_json(line, f"{name}, line {n}")
            for n, line in enumerate(lines, 1)
            if line.strip()
        ]
    return inputs + lines


def _read_single_text() -> str:
    text = standard_input()
    lines = len(text.splitlines())
    if lines > 1:
        note(f"Standard input is one text of {lines:,} lines; --prompts - reads a text a line.")
    return text.removesuffix("\n")


def _read_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        hint = files.nearest_path(Path(name))
        raise UserError(
            f"{name} cannot be read ({error.strerror}); check the path.{hint}"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text (byte {error.start}); convert it.") from None


def _text_from_json(line: str, place: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{place} is not valid JSON; fix that line.") from None
    text = value.get("text", value.get("prompt")) if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise UserError(f'{place} has no "text" or "prompt"; give {{"text": "..."}}.')
    return text


def standard_input() -> str:
    """Reads all of standard input; UserError where it is not text."""
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
    import tempfile

    text, folder = standard_input(), Path(tempfile.mkdtemp(prefix="glassformer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / ("standard-input.jsonl" if text.startswith("{") else "standard-input.txt")
    path.write_text(text, encoding="utf-8")
    return str(path)


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


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_table(
    rows: Iterable[Sequence[str]], heading: Sequence[str] = (), left_aligned: Collection[int] = (0,)
) -> None:
    """Print rows as columns; those numbered in ``left`` begin at the left, the others end at the
    right."""
    from ..inspection import tables

    print("\n".join(tables.lines(rows, heading, left_aligned)))


def print_pairs(*pairs: tuple[str, str]) -> None:
    """Print names and values, one pair a line."""
    print_table(pairs, left_aligned=(0, 1))


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


def print_result(as_json: bool, value: Any, rows: Iterable[Sequence[str]], **layout: Any) -> None:
    """Print a result: ``value`` as JSON, else ``rows`` as a table (``layout`` as ``table`` takes
    it)."""
    if as_json:
        print_json(value)
    else:
        print_table(rows, **layout)


def parse_columns(text: str | None) -> dict[str, str]:
    """Parses ``--columns``, ``text=0,label=1``, into a dictionary."""
    pairs = [field.partition("=") for field in (text or "").split(",") if text]
    if not all(equals and field and column for field, equals, column in pairs):
        raise UserError(f'--columns is "{text}"; give PART=COLUMN, such as text=0,label=1.')
    return {field.strip(): column.strip() for field, _, column in pairs}


def unescape(text: str) -> str:
    """A text in which \\n is a new line."""
    return text.replace("\\n", "\n")


def new_file(out: str | Path, *inputs: str | Path | None) -> Path:
    """Returns the path of an output file; UserError for a folder and for one of the ``inputs``."""
    path = Path(out)
    need(not path.is_dir(), f"--out {path} is a folder; give the name of a file in it.")
    if path.exists() and any(
        name is not None and Path(name).exists() and path.samefile(name) for name in inputs
    ):
        raise UserError(
            f"{path} is what is read here, and would be written over; give another name."
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

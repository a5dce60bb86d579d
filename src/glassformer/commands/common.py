"""What the verbs share: their options, each declared once, and how they print results and notes, and write files
and folders."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from ..core import files
from ..core.errors import UserError, need
from ..core.errors import note as note
from ..sight import text_table as text_table
from .parsing import Words

REPORT_INTERVAL = 30.0  # seconds without a word on standard error, where it is not a terminal


@dataclass(frozen=True)
class CommandOutput:
    """A command's result: the value that ``--json`` prints, else the lines for a reader.

    Either may be a function, called where it is printed. ``notes`` go to standard error before the
    lines, ``ending`` after them.
    """

    value: Any
    lines: Iterable[str] | Callable[[], Iterable[str]] = ()
    notes: Iterable[str] = ()
    ending: str = ""
    exit_code: int = 0

    def show(self, as_json: bool) -> None:
        if as_json:
            print_json(self.value() if callable(self.value) else self.value)
            return
        note_all(self.notes)
        lines = list(self.lines() if callable(self.lines) else self.lines)
        if lines:
            print("\n".join(lines))
        if self.ending:
            note(self.ending)


def note_all(lines: Iterable[str]) -> None:
    for line in lines:
        note(line)


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


SHARED = """Options of many commands.

model MODEL: a folder, a hub name or a recipe such as glass/1m
device D: cpu, cuda, cuda:1 or mps (the GPU where there is one)
dtype D: float32, bfloat16 or float16 (the checkpoint's own)
use FILE.py: first run your Python file, which adds mechanisms or recipes; may be repeated
edit EDIT: change the pass, such as head_off("decoder.blocks.3.attn", 4); may be repeated
    (docs/sight.md)
text TEXT: the text that the model reads; - is standard input
texts TEXT: one text or several; - is standard input, one text
prompts FILE: read texts from a file, one a line, or from JSONL (its text or prompt); - is standard
    input
batch N: texts at once
truncate: truncate texts that are too long for the model (by default they are refused)
source TEXT: the source text of an encoder-decoder
position N: the position to explain (a blank ___, else the last)
field NAME: the text field of JSONL
separator TEXT: the separator between documents of a plain file (none)
columns P=C,...: the columns of a table: text=0,label=1
vectors VECTORS: a file in word2vec's text or binary format
seed N: the seed of random draws (0)
json: as JSON
"""


@dataclass
class DeviceOptions:
    """The device and the dtype that a command computes with."""

    _: KW_ONLY
    device: str | None = None
    dtype: str | None = None
    use: Words = ()

    def for_engine(self) -> str:
        """Returns the device for an engine: the one named by ``--device``, else the CPU, where its
        speed is measured."""
        from ..fast import device as devices

        default = devices.find(self.device)
        if self.device is not None or default.type == "cpu":
            return str(default)
        note(f"The engine computes on the CPU; --device {default.type} selects the GPU.")
        return "cpu"


@dataclass
class ModelOptions(DeviceOptions):
    """A model by its name, on the device and in the dtype of the options."""

    model: str

    def load(self, **options: Any) -> tuple[Any, Any]:
        """Returns the model with its tokenizer or None."""
        from ..fast import device as devices
        from ..formats import resolve, store

        if hint := resolve.of_run(self.model):
            note(hint)
        device = devices.find(self.device)
        model, tokenizer = store.load(self.model, dtype=self.dtype, device=device, **options)
        if self.device or self.dtype or device.type != "cpu":  # else there was nothing to choose
            kind = str(next(model.parameters()).dtype).removeprefix("torch.")
            note(f"{self.model} computes on {devices.title(device)} in {kind}.")
        return model, tokenizer

    def load_with_tokenizer(self) -> tuple[Any, Any]:
        """Returns the model and the tokenizer it needs to read text; UserError where it has
        none."""
        model, tokenizer = self.load()
        if tokenizer is None:
            from ..formats import resolve

            adding = (
                f", or add it: glassformer convert {shlex.quote(self.model)} --tokenizer NAME "
                "--out NEW_FOLDER"
            )
            shape, adding = (
                (": it is an untrained shape", "")
                if resolve.is_recipe(self.model)
                else ("", adding)
            )
            raise UserError(
                f"{self.model} has no tokenizer{shape}, so text cannot be read; load a folder "
                f"that has one{adding}."
            )
        return model, tokenizer

    def note_untrained(self) -> None:
        note_untrained(self.model)

    def run_objective(self) -> str | None:
        """Returns the objective of the run that a folder, or one of its checkpoints, comes from;
        None where it is unknown."""
        from ..runs.run_file import saved_run

        path = Path(self.model).expanduser()
        settings = saved_run(path) or saved_run(path.parent)
        objective = settings["train"].get("objective", "Causal") if settings else None
        return objective.get("type", "Causal") if isinstance(objective, dict) else objective


def note_untrained(name: str) -> None:
    """Notes of a recipe that its weights are random."""
    from ..formats import resolve

    if resolve.is_recipe(name):
        note(f"{name} is an untrained shape: its weights are random.")


def parse_edits(texts: Sequence[str]) -> list[Any]:
    """Returns the edits of ``--edit``, in order."""
    from ..sight import edits

    return [edits.parse(text) for text in texts]


def edits_suffix(edits: Sequence[Any]) -> str:
    """Returns the suffix that names the edits behind a result's title; "" for none."""
    return f", with {' and '.join(map(repr, edits))}" if edits else ""


def read_text(text: str) -> str:
    """Returns the text, or all of standard input for ``-``."""
    if text != "-":
        return text
    text = standard_input()
    lines = len(text.splitlines())
    if lines > 1:
        note(f"Standard input is one text of {lines:,} lines; --prompts - reads a text a line.")
    return text.removesuffix("\n")


def read_texts(texts: Sequence[str]) -> list[str]:
    return [read_text(text) for text in texts]


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


def parse_columns(text: str) -> dict[str, str]:
    """Parses ``--columns``, ``text=0,label=1``, into a dictionary."""
    pairs = [field.partition("=") for field in text.split(",") if text]
    if not all(equals and field and column for field, equals, column in pairs):
        raise UserError(f'--columns is "{text}"; give PART=COLUMN, such as text=0,label=1.')
    return {field.strip(): column.strip() for field, _, column in pairs}


def unescape(text: str) -> str:
    """A text in which \\n is a new line."""
    return text.replace("\\n", "\n")


Text = Annotated[str, read_text]
Texts = Annotated[Words, read_texts]
Edits = Annotated[Sequence[Any], parse_edits]
Separator = Annotated[str, unescape]
Columns = Annotated[dict[str, str], parse_columns]

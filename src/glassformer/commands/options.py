"""The options that many commands share, each declared once."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from ..core.errors import UserError, need, note
from .parsing import Words

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
        from ..formats import resolve
        from ..formats.checkpoint import Checkpoint

        if hint := resolve.checkpoint_note(self.model):
            note(hint)
        device = devices.find(self.device)
        checkpoint = Checkpoint.open(self.model)
        model = checkpoint.model(dtype=self.dtype, device=device, **options)
        tokenizer = checkpoint.tokenizer()
        if self.device or self.dtype or device.type != "cpu":  # else there was nothing to choose
            kind = str(next(model.parameters()).dtype).removeprefix("torch.")
            note(f"{self.model} computes on {devices.title(device)} in {kind}.")
        return model, tokenizer

    def run_folder(self) -> str:
        """Returns the folder of a run whose history is opened; UserError for another device or
        dtype than the run's."""
        message = (
            "A run's history is that of its own device and dtype; leave --device and --dtype out."
        )
        need(not (self.device or self.dtype), message)
        return self.model

    def load_with_tokenizer(self, **options: Any) -> tuple[Any, Any]:
        """Returns the model and the tokenizer it needs to read text; UserError where it has
        none."""
        model, tokenizer = self.load(**options)
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
    return text.removesuffix("\n").removesuffix("\r")


def read_texts(texts: Sequence[str]) -> list[str]:
    return [read_text(text) for text in texts]


def standard_input() -> str:
    """Reads all of standard input; UserError where it is not text."""
    need(sys.stdin is not None, "There is no standard input; give a text or a file.")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(newline="")  # no line end is translated, as in a file
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

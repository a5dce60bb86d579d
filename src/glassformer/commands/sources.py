"""The corpora, examples and lines of texts that commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from ..core import files
from ..core.errors import UserError, need
from .options import standard_input
from .parsing import note_all

LARGEST = 1 << 32  # bytes of a file of texts, which are held at once


def find_corpus(name: str, field: str = "text", separator: str | None = None) -> Any:
    """Returns the corpus of this name; notes what its files may mean otherwise."""
    from ..formats.data import find

    corpus = find(name, field, separator)
    note_all(corpus.notes)
    return corpus


def read_examples(
    data: Any, target: str | None, objective: Any, columns: dict[str, str] | None, **options: Any
) -> Any:
    """Returns the examples of a file, or of one of sources and one of targets; notes what the files
    may mean otherwise."""
    from ..tasks import examples

    place = data if target is None else {"source": data, "target": target}
    table = examples.read_examples(place, objective, columns=columns or {}, **options)
    note_all(table.notes)
    return table


def read_prompts(source: str) -> list[str]:
    """Returns the texts of a file, or of standard input for ``-``."""
    name, content = (
        ("Standard input", standard_input()) if source == "-" else (source, read_file(source))
    )
    content = content.removeprefix("\ufeff").removesuffix("\n")  # as corpora and examples are read
    lines = [line.removesuffix("\r") for line in content.split("\n")]
    need(lines != [""], f"{name} is empty; give a text a line.")
    if source.endswith((".jsonl", ".ndjson")) or lines[0].startswith('{"'):
        lines = [
            _text_from_json(line, f"{name}, line {n}")
            for n, line in enumerate(lines, 1)
            if line.strip()
        ]
    return lines


def read_file(name: str) -> str:
    try:
        return files.read_text(Path(name), LARGEST)  # no line end is translated
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


def file_or_input(name: str) -> str:
    """A file's name; for ``-`` that of one that holds standard input for as long as the program
    runs."""
    if name != "-":
        return name
    import atexit
    import shutil
    import tempfile

    text, folder = standard_input(), Path(tempfile.mkdtemp(prefix="glassformer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / ("standard-input.jsonl" if text.startswith("{") else "standard-input.txt")
    path.write_text(text, encoding="utf-8")
    return str(path)


Prompts = Annotated[tuple[str, ...], read_prompts]

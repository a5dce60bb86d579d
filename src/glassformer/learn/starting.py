"""The learner's file: made of an exercise, as Python or as a notebook, and read back."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import UserError, need
from .exercise import Exercise

MARK = re.compile(r"^#\s*exercise:\s*([\w-]+)\s*$", re.MULTILINE)
MAGIC = re.compile(r"^(\s*)([%!?].*|[\w.]+\?+|[\w., ]+=\s*[%!].*)$")
TIMES = ("%%time", "%%timeit", "%%capture", "%%prun")  # below them stands Python
LARGEST = 1 << 26  # bytes of a file; a notebook with many pictures has some millions
ALOUD = "glassformer learn"


@dataclass(frozen=True)
class LearnerSource:
    """A learner's code and the exercise it is of; of a notebook also ``places``: the cell and line
    of each line."""

    path: Path
    exercise: str
    code: str
    places: tuple[tuple[int, int], ...] | None = None

    def location(self, line: int | None) -> str:
        """A line as the learner finds it; "" for none."""
        if line is None:
            return ""
        if self.places is None:
            return f"line {line}"
        cell, inner = self.places[min(line, len(self.places)) - 1]
        return f"code cell {cell}, line {inner}"


def python(exercise: Exercise) -> str:
    """The learner's file: the task, the code with TODOs, the hints at its end."""
    task = textwrap.dedent(exercise.task)
    check = f"Check it:  {ALOUD} check {exercise.file}\nStuck?     {ALOUD} hint {exercise.name}"
    head = f'"""{exercise.title}\n\n{task}\n\n{check}\n"""\n\n# exercise: {exercise.name}\n\n'
    text = head.replace("\\", "\\\\") + exercise.starter
    if not exercise.hints:
        return text
    hints = "\n".join(_comment(f"{at}. {hint}") for at, hint in enumerate(exercise.hints, 1))
    rule = "-" * 30
    return f"{text}\n\n# {rule} hints, from vague to plain: read on only when you are stuck\n#\n{hints}\n"


def _comment(text: str) -> str:
    return textwrap.fill(
        text, 110, initial_indent="# ", subsequent_indent="#    ", break_long_words=False
    )


def notebook(exercise: Exercise) -> str:
    """The same as a notebook (nbformat 4.5)."""
    check = f"{ALOUD} check {Path(exercise.file).stem}.ipynb"
    ending = f"When it is written, save and run the last cell, or `{check}`."
    hints = "\n\n".join(
        f"<details><summary>Hint {at}</summary>\n\n{hint}\n\n</details>"
        for at, hint in enumerate(exercise.hints, 1)
    )
    texts = [
        ("markdown", f"# {exercise.title}\n\n{textwrap.dedent(exercise.task)}\n\n{ending}"),
        ("code", f"# exercise: {exercise.name}\n{exercise.starter.strip()}"),
        ("markdown", hints),
        ("code", f"!{check}"),
    ]
    outputs: dict[str, Any] = {"execution_count": None, "outputs": []}
    cells = [
        {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        | (outputs if kind == "code" else {})
        for kind, text in texts
        if text
    ]
    cells = [cell | {"id": f"{exercise.name}-{at}"} for at, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}}
    return json.dumps(content | {"nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def write(exercise: Exercise, folder: Path, as_notebook: bool = False) -> Path:
    """Put the learner's file into a folder; UserError where one is there already, or the folder
    cannot be written."""
    path = folder / (f"{Path(exercise.file).stem}.ipynb" if as_notebook else exercise.file)
    need(
        not path.exists(),
        f"{path} is there already and is left as it is; check it, or start in "
        "another --out FOLDER.",
    )
    files.make_folder(folder)
    files.write(path, notebook(exercise) if as_notebook else python(exercise))
    return path


def read_source(path: Path) -> LearnerSource:
    """A learner's file; UserError where it cannot be read or says of no exercise that it is
    one's."""
    path = path.expanduser()
    need(
        not path.is_dir(),
        f"{path} is a folder; name a file in it, or a class's folder: {ALOUD} check --all {path}.",
    )
    try:
        text = files.read_bytes(path, LARGEST).decode().replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UserError(f"{path} is not there; check the path.{files.nearest_path(path)}") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); check the path and its rights."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it.") from None
    need("\0" not in text, f"{path} is not a Python file: it holds a NUL; write it again.")
    places = None
    if path.suffix == ".ipynb":
        text, places = _code_of(text, path)
    mark = MARK.search(text)
    if mark is None:
        raise UserError(
            f'{path} belongs to no exercise: it has no line "# exercise: NAME", which {ALOUD} start '
            "writes; put it back in."
        )
    return LearnerSource(path, mark[1], text, places)


def _code_of(text: str, path: Path) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A notebook's code as one text, what is meant for Jupyter alone left out, and where each line
    stands."""
    cells = files.json_object(text, str(path), "save the notebook again").get("cells")
    codes = [
        source if isinstance(source, str) else "".join(map(str, source))
        for cell in (cells if isinstance(cells, list) else [])
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
        for source in [cell.get("source", "")]
    ]
    lines = list[str]()
    places = list[tuple[int, int]]()
    for number, code in enumerate(codes, 1):
        cell_lines = _python_of(code)
        lines += cell_lines
        places += [(number, at) for at in range(1, len(cell_lines) + 1)]
    return "\n".join(lines) + "\n", tuple(places) or ((1, 1),)


def _python_of(code: str) -> list[str]:
    """A cell's lines, as many as there are; where it is not Python as it stands, without what only
    Jupyter knows."""
    lines = code.splitlines()
    if lines and lines[0].startswith("%%"):
        below = _python_of("\n".join(lines[1:])) if lines[0].split()[0] in TIMES else []
        return ["", *(below or [""] * (len(lines) - 1))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError):
        return [MAGIC.sub(r"\1pass  # \2", line) for line in lines]
    return lines

"""An exercise is one Python file: the task, the learner's part with its solution, and the check
(docs/learn.md).

    \"\"\"The title            first line; then the task, in Markdown\"\"\"
    ROAD = 4.2               page of the road, and place on it
    HINTS = ("...", "...")   from vague to plain
    SECONDS = 20             of the processor that a check may take (20 where it says nothing)
    POINTS = 10              in a gradebook (10 where it says nothing)

    # %% yours               the learner's file, solved; between "# TODO" and "# END" stands what the learner writes
    # %% check               def check(learner, report): raises where the learner is wrong (report.py)

Read as text, not run: a list of exercises needs no torch.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.errors import UserError, nearest, need

BUNDLED = Path(__file__).parent / "exercises"
YOURS, CHECK = "# %% yours\n", "# %% check\n"
FORMAT = "docs/learn.md shows the format"
ROAD = (
    "From text to numbers",
    "What came before",
    "Embeddings and positions",
    "Attention, by hand",
    "The block",
    "Three shapes",
    "The head and decoding",
    "Training",
    "Efficient attention",
    "Experts",
    "Look inside your own model",
    "Run it",
)
"""The titles of the road's pages, counted from 1."""


@dataclass(frozen=True)
class Exercise:
    """One exercise as its file says it; ``solution`` is the learner's file as it should become."""

    name: str  # as people say it: causal-mask
    title: str
    task: str  # Markdown
    road: float  # page of the road, and the place on it behind the point
    hints: tuple[str, ...]
    seconds: float  # of the processor that a check may take
    solution: str
    path: Path
    points: float  # in a gradebook

    @property
    def page(self) -> str:
        """The title of its page of the road; "" where the road has no such page."""
        if 1 <= self.road < len(ROAD) + 1:
            return ROAD[int(self.road) - 1]
        return ""

    @property
    def file(self) -> str:
        """File name of the learner's copy."""
        return f"{self.name.replace('-', '_')}.py"

    @cached_property
    def starter(self) -> str:
        """The solution without what stands between TODO and END."""
        return without_answers(self.solution)


def without_answers(solution: str) -> str:
    """Code whose answers are cut out: each TODO keeps its comment and raises
    NotImplementedError."""
    lines: list[str] = []
    indent: str | None = None  # of the TODO we are in
    for line in solution.splitlines():
        bare = line.strip()
        if indent is None:
            lines.append(line)
            if bare.startswith("# TODO"):
                indent, answered = line[: line.index("#")], False
        elif bare == "# END":
            lines.append(f"{indent}raise NotImplementedError")
            indent = None
        elif bare.startswith("#") and not answered:
            lines.append(line)  # the TODO's own words go on
        else:
            answered = True
    return "\n".join(lines) + "\n"


def read_exercise(path: Path) -> Exercise:
    """The exercise in a file; UserError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path.") from None
    except (SyntaxError, ValueError) as error:  # ValueError: no UTF-8, or a NUL
        line = getattr(error, "lineno", None)
        raise UserError(
            f"{path}{f', line {line}' if line else ''} is not valid Python ({error}); fix it."
        ) from None
    docstring = (ast.get_docstring(tree) or "").partition("\n")
    need(bool(docstring[0]), f"{path} is no exercise: it does not begin with a title; {FORMAT}.")
    for mark in (YOURS, CHECK):
        need(mark in text, f"{path} is no exercise: it has no line {mark.strip()!r}; {FORMAT}.")
    solution = text.partition(YOURS)[2].partition(CHECK)[0].strip("\n") + "\n"
    todos, end_count = (
        len(re.findall(rf"^\s*# {word}\b", solution, re.MULTILINE)) for word in ("TODO", "END")
    )
    if not todos or todos != end_count:
        raise UserError(
            f"{path} has {todos} TODO and {end_count} END; each TODO needs an END after it; "
            f"{FORMAT}."
        )
    need(
        any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body),
        f"{path} is no exercise: it has no function check(learner, report); {FORMAT}.",
    )
    constants: dict[str, Any] = {"ROAD": 0, "HINTS": (), "SECONDS": 20, "POINTS": 10}
    constants |= _constants(tree, path)
    try:
        road, seconds, points = (float(constants[name]) for name in ("ROAD", "SECONDS", "POINTS"))
        hints = tuple(map(str, constants["HINTS"]))
    except (TypeError, ValueError):
        raise UserError(
            f"{path}: ROAD, SECONDS and POINTS are numbers, HINTS texts in brackets; {FORMAT}."
        ) from None
    name = path.stem.replace("_", "-")
    title = docstring[0].rstrip(".")
    task = docstring[2].strip()
    return Exercise(name, title, task, road, hints, seconds, solution, path, points)


def _constants(tree: ast.Module, path: Path) -> dict[str, Any]:
    """The values of ROAD, HINTS, SECONDS and POINTS where they are set, read without running the file."""
    constants: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name("ROAD" | "HINTS" | "SECONDS" | "POINTS" as name)], value=value
            ):
                try:
                    constants[name] = ast.literal_eval(value)
                except ValueError:
                    raise UserError(
                        f"{path}, line {node.lineno}: {name} is computed; write it out."
                    ) from None
    return constants


def catalogue(folder: str | Path | None = None) -> list[Exercise]:
    """Our exercises and those of a teacher's folder, in the order of the road; one of the same name
    replaces ours.

    Raises UserError for a folder that is none, or has no exercise, or one that cannot be read.
    """
    files = _sources(BUNDLED)
    if folder is not None:
        home = Path(folder).expanduser()
        need(home.is_dir(), f"{folder} is not a folder; give one with exercises in it.")
        teacher_files = _sources(home)
        need(bool(teacher_files), f"{folder} holds no exercise; {FORMAT}.")
        files += teacher_files
    exercises = {exercise.name: exercise for exercise in map(read_exercise, files)}
    return sorted(exercises.values(), key=lambda exercise: (exercise.road, exercise.name))


def _sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]


def find(name: str, folder: str | Path | None = None) -> Exercise:
    """The exercise of that name; UserError with the nearest where there is none."""
    exercises = {exercise.name: exercise for exercise in catalogue(folder)}
    requested = name.strip().lower().replace("_", "-").replace(" ", "-").removesuffix(".py")
    if requested not in exercises:
        hint = nearest(requested.replace("-", "_"), exercises)
        raise UserError(f'There is no exercise "{name}".{hint} glassformer learn lists them.')
    return exercises[requested]

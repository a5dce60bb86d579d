"""Verdicts on learners' files, one or a class's; the code runs in the worker's processes
(worker.py), not here."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ..core.errors import UserError, need
from ..tasks.limited_process import LimitedWorker
from .exercise import Exercise, find
from .starting import LearnerSource, read_source
from .worker import verdict as worker_verdict

COMMAND = (sys.executable, "-m", "glassformer.learn.worker")
IGNORED_FOLDERS = ("__pycache__", ".ipynb_checkpoints", ".git", ".venv")


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    ``state`` is passed, failed (a wrong answer), todo (not written yet), error (the learner's code
    raised it), stopped (out of time) or, in a class, refused (a file of no exercise). ``where`` is
    the line, or the cell and its line; ``code`` what stands there; ``look`` what to look at;
    ``good`` what was right; ``printed`` what the learner's code printed.
    """

    exercise: str
    file: str
    state: str
    message: str = ""
    where: str = ""
    code: str = ""
    look: str = ""
    good: list[str] = field(default_factory=list)
    printed: str = ""
    seconds: float = 0.0
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = [f"  + {line}" for line in self.good]
        if self.state == "passed":
            return [*lines, f"{self.exercise}: passed."]
        location = f"{self.where}: " if self.where else ""
        end = "" if self.message.endswith((".", "?")) else "."
        lines.append(f"  - {location}{self.message}{end}")
        lines += [f"        {self.code}"] if self.code else []
        lines += [f"    Look at: {self.look}"] if self.look else []
        return [*lines, f"{self.exercise}: {STATE_PHRASES[self.state]}."]


STATE_PHRASES = {
    "failed": "not yet",
    "todo": "not written yet",
    "error": "stopped by an error",
    "stopped": "out of time",
}


def printable(text: str) -> str:
    """Text of a learner's code for a terminal: its lines and tabs, and escapes and the like written
    out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in text
    )


def one_line(text: str) -> str:
    """The same on one line."""
    return printable(text).replace("\n", " ").replace("\t", " ")


class Checker:
    """A worker that is kept for as many checks as there are; use it as a context."""

    def __init__(self, exercises: str | Path | None = None) -> None:
        self.exercises = exercises
        self._worker = LimitedWorker(COMMAND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.close()

    def check(
        self, file: str | Path, seed: int | None = None, seconds: float | None = None
    ) -> Verdict:
        """The verdict on a learner's .py file or notebook; UserError where it is of no exercise or
        cannot be read.

        ``seed`` repeats the inputs of a check; ``seconds`` is the limit, the exercise's own where
        none is given.
        """
        source = read_source(Path(file))
        return self.check_source(find(source.exercise, self.exercises), source, seed, seconds)

    def check_source(
        self,
        exercise: Exercise,
        source: LearnerSource,
        seed: int | None = None,
        seconds: float | None = None,
    ) -> Verdict:
        """The verdict on this code."""
        seed = secrets.randbelow(1 << 31) if seed is None else seed
        with tempfile.TemporaryDirectory(
            prefix="glassformer-learn-", ignore_cleanup_errors=True
        ) as folder:
            path = source.path.resolve()
            if source.places is not None:  # a notebook's code, as a file
                path = Path(folder) / f"{source.path.stem}.py"
                path.write_text(source.code, encoding="utf-8")
            job: dict[str, Any] = {
                "file": str(path),
                "exercise": str(exercise.path),
                "seed": seed,
                "shown": source.path.name,
                "seconds": seconds or exercise.seconds,
                "folder": str(source.path.resolve().parent),
            }
            answer = self._worker.ask(job, job["seconds"]) or worker_verdict(
                "error",
                "Your code ended or stopped the process that runs the checks; leave other "
                "processes alone",
            )
        return Verdict(
            exercise.name,
            str(source.path),
            answer["state"],
            one_line(answer["message"]),
            source.location(answer["line"]),
            one_line(answer["code"]),
            one_line(answer["look"]),
            list(map(one_line, answer.get("good", ()))),
            printable(answer.get("printed", "")),
            answer.get("seconds", 0.0),
            seed,
        )


def class_folder(
    folder: str | Path, checker: Checker, seconds: float | None = None
) -> Iterator[tuple[str, Verdict]]:
    """Check each learner's file of a class, one by one: the learner and the verdict, refused for a
    file that is of no exercise; UserError where the folder is none or holds no file.

    A learner is a folder in it, or a file that lies in it. Every learner gets the same inputs,
    drawn now.
    """
    home = Path(folder).expanduser()
    seed = secrets.randbelow(1 << 31)
    need(home.is_dir(), f"{folder} is not a folder; give the one that holds the learners' files.")
    # folders that may not be read: their learners are told of, not passed over
    closed: list[OSError] = []
    paths = [
        Path(at) / name for at, _, names in os.walk(home, onerror=closed.append) for name in names
    ]
    files = {
        path: ""
        for path in paths
        if path.suffix in (".py", ".ipynb")
        and path.is_file()
        and not set(path.parts) & set(IGNORED_FOLDERS)
    }
    for error in closed:
        problem = f"{error.filename} cannot be read ({error.strerror}); open it."
        need(Path(error.filename) != home, problem)
        files[Path(error.filename)] = problem
    need(
        bool(files),
        (f"{folder} holds no .py file and no notebook; give the folder of the learners' files."),
    )
    for path, problem in sorted(files.items()):
        relative_path = path.relative_to(home)
        first = relative_path.parts[0] if len(relative_path.parts) > 1 else path.stem
        file = one_line(str(relative_path))
        try:
            need(not problem, problem)
            verdict = replace(checker.check(path, seed, seconds), file=file)
        except UserError as error:
            verdict = Verdict("", file, "refused", str(error))
        except Exception as error:  # whatever a file does to us, the next learner's turn comes
            refused = (
                f"{file} could not be checked ({type(error).__name__}: {error}); "
                "look at it yourself."
            )
            verdict = Verdict("", file, "refused", refused)
        yield one_line(first), verdict

"""Verdicts on learners' files, one or a class's; the code runs in the worker's processes (worker.py), not here."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from ..errors import UserError, need
from .exercise import Exercise, find
from .starting import Source, read

STOPPED = 130  # how the worker ends when Ctrl-C reached it
LEFT_OUT = ("__pycache__", ".ipynb_checkpoints", ".git", ".venv")


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    ``state`` is passed, failed (a wrong answer), todo (not written yet), error (the learner's code raised it) or
    stopped (out of time). ``where`` is the line, or the cell and its line; ``code`` what stands there; ``look`` what to
    look at; ``good`` what was right; ``printed`` what the learner's code printed.
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
        """As JSON holds it."""
        return dict(vars(self))

    def lines(self) -> list[str]:
        """For a terminal."""
        told = [f"  + {one}" for one in self.good]
        if self.state == "passed":
            return [*told, f"{self.exercise}: passed."]
        where = f"{self.where}: " if self.where else ""
        told.append(f"  - {where}{self.message}{'' if self.message.endswith(('.', '?')) else '.'}")
        told += [f"        {self.code}"] if self.code else []
        told += [f"    Look at: {self.look}"] if self.look else []
        return [*told, f"{self.exercise}: {NOT[self.state]}."]


NOT = {"failed": "not yet", "todo": "not written yet", "error": "stopped by an error", "stopped": "out of time"}


class Checker:
    """A worker that is kept for as many checks as there are; use it as a context."""

    def __init__(self, exercises: str | Path | None = None) -> None:
        self.exercises = exercises
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._worker is not None:
            assert self._worker.stdin is not None
            with contextlib.suppress(OSError):
                self._worker.stdin.close()
            self._worker.wait()
            self._worker = None

    def check(self, file: str | Path, seed: int | None = None, seconds: float | None = None) -> Verdict:
        """The verdict on a learner's .py file or notebook; UserError where it is of no exercise or cannot be read.

        ``seed`` repeats the inputs of a check; ``seconds`` is the limit, the exercise's own where none is given.
        """
        source = read(Path(file))
        return self.of(find(source.exercise, self.exercises), source, seed, seconds)

    def of(self, exercise: Exercise, source: Source, seed: int | None = None, seconds: float | None = None) -> Verdict:
        """The verdict on this code."""
        seed = secrets.randbelow(1 << 31) if seed is None else seed
        with tempfile.TemporaryDirectory(prefix="glassformer-learn-") as folder:
            path = source.path.resolve()
            if source.places is not None:  # a notebook's code, as a file
                path = Path(folder) / f"{source.path.stem}.py"
                path.write_text(source.code, encoding="utf-8")
            job = {"file": str(path), "exercise": str(exercise.path), "seed": seed, "shown": source.path.name}
            job |= {"seconds": seconds or exercise.seconds, "folder": str(source.path.resolve().parent)}
            said = self._ask(job)
        line = said.pop("line", None)
        told = {
            name: said[name]
            for name in ("state", "message", "look", "code", "good", "printed", "seconds")
            if name in said
        }
        return Verdict(exercise.name, str(source.path), **told, where=source.where(line), seed=seed)

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer."""
        if self._worker is None:
            words = [sys.executable, "-m", "glassformer.learn.worker"]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
            path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
            self._worker = subprocess.Popen(
                words, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}, **pipes
            )
        assert self._worker.stdin is not None and self._worker.stdout is not None
        answer = _exchange(self._worker.stdin, self._worker.stdout, json.dumps(job))
        if not answer:
            ended, self._worker = self._worker.wait(), None
            if ended == STOPPED:  # Ctrl-C reached it before us
                raise KeyboardInterrupt
            raise UserError("The process that runs the checks has ended; run glassformer doctor, then check again.")
        told: dict[str, Any] = json.loads(answer)
        return told


def _exchange(there: IO[str], back: IO[str], line: str) -> str:
    try:
        print(line, file=there, flush=True)
    except OSError:
        return ""
    return back.readline()


@dataclass(frozen=True)
class Handed:
    """A learner's file in a class's folder, with the verdict; of a file that is of no exercise only ``refused``."""

    learner: str
    file: str
    verdict: Verdict | None
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        told = {"learner": self.learner, "file": self.file}
        return told | (self.verdict.to_dict() if self.verdict else {"state": "refused", "message": self.refused}) | told


def class_folder(folder: str | Path, checker: Checker, seconds: float | None = None) -> Iterator[Handed]:
    """Check each learner's file of a class, one by one; UserError where the folder is none or holds no file.

    A learner is a folder in it, or a file that lies in it. Every learner gets the same inputs, drawn now.
    """
    home, seed = Path(folder).expanduser(), secrets.randbelow(1 << 31)
    need(home.is_dir(), f"{folder} is not a folder; give the one that holds the learners' files.")
    closed: list[OSError] = []  # folders that may not be read: their learners are told of, not passed over
    paths = [Path(at) / name for at, _, names in os.walk(home, onerror=closed.append) for name in names]
    files = [path for path in paths if path.suffix in (".py", ".ipynb") and path.is_file()]
    files = [path for path in files if not set(path.parts) & set(LEFT_OUT)]
    lost = {Path(error.filename): f"{error.filename} cannot be read ({error.strerror}); open it." for error in closed}
    need(home not in lost, lost.get(home, ""))
    empty = f"{folder} holds no .py file and no notebook; give the folder of the learners' files."
    need(bool(files or lost), empty)
    for path in sorted([*files, *lost]):
        where = path.relative_to(home)
        learner = where.parts[0] if len(where.parts) > 1 else path.stem
        try:
            need(path not in lost, lost.get(path, ""))
            yield Handed(learner, str(where), checker.check(path, seed, seconds))
        except UserError as error:
            yield Handed(learner, str(where), None, str(error))

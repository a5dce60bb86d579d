"""Verdicts on learners' files, one or a class's; the code runs in the worker's processes
(worker.py), not here."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..core.errors import UserError, need
from .exercise import Exercise, find
from .starting import LearnerSource, read_source
from .worker import GRACE, LONGEST, READY, WALL, verdict

COMMAND = (sys.executable, "-m", "glassformer.learn.worker")
EXTRA_SECONDS = 60  # seconds beyond a job's own limit, on a busy machine
IGNORED_FOLDERS = ("__pycache__", ".ipynb_checkpoints", ".git", ".venv")


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    ``state`` is passed, failed (a wrong answer), todo (not written yet), error (the learner's code
    raised it) or stopped (out of time). ``where`` is the line, or the cell and its line; ``code``
    what stands there; ``look`` what to look at; ``good`` what was right; ``printed`` what the
    learner's code printed.
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
        lines.append(
            f"  - {location}{self.message}{'' if self.message.endswith(('.', '?')) else '.'}"
        )
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


class WorkerExited(Exception):
    """The worker is gone, or hears nothing any more."""


class Checker:
    """A worker that is kept for as many checks as there are; use it as a context."""

    def __init__(self, exercises: str | Path | None = None) -> None:
        self.exercises = exercises
        self._worker: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

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
            job = {
                "file": str(path),
                "exercise": str(exercise.path),
                "seed": seed,
                "shown": source.path.name,
                "seconds": seconds or exercise.seconds,
                "folder": str(source.path.resolve().parent),
            }
            answer = self._ask(job)
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

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer; where the learner's code ended or stopped the worker, a verdict that
        says so."""
        if self._worker is None:
            self._start()
        job |= {"job": secrets.token_hex(16)}
        try:
            return self._answer(
                job, time.monotonic() + WALL * job["seconds"] + GRACE + EXTRA_SECONDS
            )
        except WorkerExited:
            self._end()
            return verdict(
                "error",
                "Your code ended or stopped the process that runs the checks; leave other "
                "processes alone",
            )
        except BaseException:
            self._end()
            raise

    def _start(self) -> None:
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self._unread = b""
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        # Ctrl-C comes to us alone
        self._worker = subprocess.Popen(COMMAND, env=env, start_new_session=True, **pipes)
        try:
            ready = self._line(time.monotonic() + 10 * EXTRA_SECONDS)
        except WorkerExited:
            ready = b""
        if ready.strip() != READY.encode():
            self._end()
            raise UserError(
                "The process that runs the checks has ended; run glassformer doctor, "
                "then check again."
            )

    def _answer(self, job: dict[str, Any], deadline: float) -> dict[str, Any]:
        assert self._worker is not None and self._worker.stdin is not None
        try:
            self._worker.stdin.write(json.dumps(job).encode() + b"\n")
        except OSError:
            raise WorkerExited from None
        while True:
            try:
                answer = json.loads(self._line(deadline))
            except (ValueError, RecursionError):  # a learner's code wrote into the worker's pipe
                continue
            if isinstance(answer, dict) and answer.pop("job", None) == job["job"]:
                return answer

    def _line(self, deadline: float) -> bytes:
        assert self._worker is not None and self._worker.stdout is not None
        while b"\n" not in self._unread:
            remaining = deadline - time.monotonic()
            if (
                remaining <= 0
                or len(self._unread) > 8 * LONGEST
                or not select.select([self._worker.stdout], [], [], remaining)[0]
            ):
                raise WorkerExited
            data = os.read(self._worker.stdout.fileno(), 1 << 16)
            if not data:
                raise WorkerExited
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _end(self) -> None:
        """End the worker, and with it the job under way."""
        if self._worker is None:
            return
        self._worker.terminate()
        try:
            self._worker.wait(GRACE)
        except subprocess.TimeoutExpired:  # stopped, or in the middle of a long import
            self._worker.kill()
            self._worker.wait()
        for pipe in (self._worker.stdin, self._worker.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._worker = None


@dataclass(frozen=True)
class Submission:
    """A learner's file in a class's folder, with the verdict; of a file that is of no exercise only
    ``refused``."""

    learner: str
    file: str
    verdict: Verdict | None
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        record = {"learner": self.learner, "file": self.file}
        return (
            record
            | (
                self.verdict.to_dict()
                if self.verdict
                else {"state": "refused", "message": self.refused}
            )
            | record
        )


def class_folder(
    folder: str | Path, checker: Checker, seconds: float | None = None
) -> Iterator[Submission]:
    """Check each learner's file of a class, one by one; UserError where the folder is none or holds
    no file.

    A learner is a folder in it, or a file that lies in it. Every learner gets the same inputs,
    drawn now.
    """
    home, seed = Path(folder).expanduser(), secrets.randbelow(1 << 31)
    need(home.is_dir(), f"{folder} is not a folder; give the one that holds the learners' files.")
    # folders that may not be read: their learners are told of, not passed over
    closed: list[OSError] = []
    paths = [
        Path(at) / name for at, _, names in os.walk(home, onerror=closed.append) for name in names
    ]
    files = [path for path in paths if path.suffix in (".py", ".ipynb") and path.is_file()]
    files = [path for path in files if not set(path.parts) & set(IGNORED_FOLDERS)]
    lost = {
        Path(error.filename): f"{error.filename} cannot be read ({error.strerror}); open it."
        for error in closed
    }
    need(home not in lost, lost.get(home, ""))
    empty = f"{folder} holds no .py file and no notebook; give the folder of the learners' files."
    need(bool(files or lost), empty)
    for path in sorted([*files, *lost]):
        relative_path = path.relative_to(home)
        learner, file = (
            one_line(relative_path.parts[0] if len(relative_path.parts) > 1 else path.stem),
            one_line(str(relative_path)),
        )
        try:
            need(path not in lost, lost.get(path, ""))
            handed = Submission(learner, file, checker.check(path, seed, seconds))
        except UserError as error:
            handed = Submission(learner, file, None, str(error))
        except Exception as error:  # whatever a file does to us, the next learner's turn comes
            refused = UserError(
                f"{file} could not be checked ({type(error).__name__}: {error}); "
                "look at it yourself."
            )
            handed = Submission(learner, file, None, str(refused))
        yield handed

"""The process that runs learners' code: ``python -m glassformer.learn.worker``, a job a line in, a
verdict a line out.

Torch is loaded once. Each job is a fork with limits (tasks/limited_process.py). This guards a class
against accidents: what fails is the verdict on that file alone. It is no sandbox: the code runs with
the teacher's rights, may read and write the teacher's files, and can forge its own verdict.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import linecache
import os
import random
import re
import signal
import sys
import time
import traceback
import warnings
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from ..core.errors import nearest
from ..tasks import limited_process
from ..tasks.limited_process import load_module

OPTIMIZER = "torch._dynamo"  # PyTorch's optimizers import it when they are first used: seconds
STATES = ("passed", "failed", "todo", "error", "stopped")


class Missing(Exception):
    """The learner's file does not define what the check asks for."""


class LearnerModule:
    """The learner's module as the check sees it: what is missing is said so, and tensors given to
    it are copies."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self._module, name):
            defined = [
                attribute for attribute in vars(self._module) if not attribute.startswith("_")
            ]
            raise Missing(
                f'Your file defines no "{name}", which the exercise asks for.{nearest(name, defined)}'
            )
        value = getattr(self._module, name)
        if not callable(value) or isinstance(value, type):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            return value(
                *map(_copied, args), **{key: _copied(argument) for key, argument in kwargs.items()}
            )

        call.__wrapped__ = value  # type: ignore[attr-defined]
        return call


def _copied(value: Any) -> Any:
    import torch

    if (
        isinstance(value, torch.Tensor)
        and not isinstance(value, torch.nn.Parameter)
        and not value.requires_grad
    ):
        return value.clone()
    return list(map(_copied, value)) if type(value) is list else value


def verdict(
    state: str, message: str = "", look: str = "", line: int | None = None, code: str = ""
) -> dict[str, Any]:
    """A verdict as it travels: one of STATES, what is wrong, what to look at, the line and its
    code."""
    return {"state": state, "message": message, "look": look, "line": line, "code": code}


def check(file: str, exercise: str, seed: int, name: str) -> dict[str, Any]:
    """The verdict on a learner's file, which the learner knows as ``name``, and what is good in
    it."""
    import torch

    from .check_report import CheckReport, Wrong

    # the check's own are nothing to the learner
    warnings.filterwarnings("ignore", module="exercise$")
    report = CheckReport(seed)
    # what the learner's code draws, repeated by a seed too; not what is drawn for it
    learner_seed = seed + (1 << 32)
    torch.manual_seed(learner_seed)
    random.seed(learner_seed)
    result = verdict("passed")
    try:
        load_module(exercise, "exercise").check(LearnerModule(load_module(file, "theirs")), report)
    except Wrong as wrong:
        result = verdict("failed", str(wrong), wrong.look)
    except Missing as missing:
        result = verdict("failed", str(missing))
    except SyntaxError as error:
        if error.filename != file:
            raise
        code = (error.text or "").strip()
        result = verdict(
            "error", f"{error.msg}: Python cannot read your file", line=error.lineno, code=code
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a learner's file that calls exit()
        result = explained(error, file, name)
    return result | {"good": report.good}


def explained(error: BaseException, file: str, name: str) -> dict[str, Any]:
    """An error of the learner's code as theirs, with its line; one of the check where none of their
    lines led to it."""
    steps = steps_of(error, file)
    description = " ".join(f"{type(error).__name__}: {error}".split())[:600].removesuffix(":")
    if "allocate memory" in description or isinstance(error, MemoryError):
        description += f" (a check may take {limited_process.MEMORY >> 30} GiB)"
    if steps:
        step = steps[-1]
        if isinstance(error, NotImplementedError):
            message = f"{step.name} is not written yet"
            todo = _todo(file, step.lineno)
            return verdict("todo", message, line=step.lineno, code=todo)
        place = "" if step.name == "<module>" else f" in {step.name}"
        message = f"Your code raised an error{place}: {description}"
        return verdict("error", message, line=step.lineno, code=(step.line or "").strip())
    call = re.search(r"(\w+)\(\) (takes|got|missing)", str(error))
    if isinstance(error, TypeError) and call:
        return verdict("error", f"{call[1]} cannot be called as the exercise asks: {description}")
    path = sys.modules["exercise"].__file__ or ""
    at = "".join(f", line {step.lineno}" for step in steps_of(error, path)[-1:])
    message = (
        f"The check ({Path(path).name}{at}) could not go on with what {name} gave it: {description}"
    )
    return verdict(
        "error",
        message,
        "the kind of what you return; if it is the kind that is asked for, the check "
        "itself is at fault",
    )


def steps_of(error: BaseException, file: str) -> list[traceback.FrameSummary]:
    """The lines of a file that led to an error, the last one last."""
    return [step for step in traceback.extract_tb(error.__traceback__) if step.filename == file]


def _todo(file: str, line: int | None) -> str:
    """The words of the TODO above a line."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()[: line or 0]
    words: list[str] = []
    for text in reversed(lines[:-1]):
        bare = text.strip()
        if not bare.startswith("#"):
            break
        words.insert(0, bare.lstrip("# "))
        if bare.startswith("# TODO"):
            break
    return " ".join(words)


def run_job(job: dict[str, Any], verdict_fd: int) -> NoReturn:
    """In the fork: check, write the verdict to its descriptor, end."""

    def answer(result: dict[str, Any]) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(verdict_fd, data) :]
        os._exit(0)

    def time_is_up(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != job["file"]:
            frame = frame.f_back
        line = None if frame is None else frame.f_lineno
        waited = number == signal.SIGALRM
        timeout = stopped(job, time.process_time() - start if waited else None)
        code = linecache.getline(job["file"], line or 0).strip()
        answer(timeout | {"line": line, "code": code})

    start = time.process_time()
    if job["shown"].endswith(".ipynb"):  # what Jupyter gives every cell
        builtins.display = print  # type: ignore[attr-defined]
    try:
        limited_process.limit(job["seconds"])
        signal.signal(signal.SIGPROF, time_is_up)
        signal.signal(signal.SIGALRM, time_is_up)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        signal.setitimer(signal.ITIMER_REAL, limited_process.WALL * job["seconds"])
        sys.path.insert(0, job["folder"])  # where the learner's other files are
        os.chdir(job["folder"])
        answer(check(job["file"], job["exercise"], job["seed"], job["shown"]))
    except BaseException as error:
        answer(verdict("error", f"The check itself failed: {type(error).__name__}: {error}"))


def stopped(job: dict[str, Any], computed: float | None = None) -> dict[str, Any]:
    """The verdict on code that does not end: too long a computing, or a wait that ``computed`` few
    seconds."""
    if computed is None:
        return verdict(
            "stopped",
            f"Your code was still running after {job['seconds']:g} seconds of computing and was "
            "stopped",
            "A loop that never ends? A while whose condition never changes, or a step that moves "
            "nothing.",
        )
    return verdict(
        "stopped",
        f"Your code had not ended after {job['seconds']:g} seconds of computing or "
        f"{limited_process.WALL * job['seconds']:g} by the clock: it computed {computed:.1f} and was stopped",
        "What does it wait for? A sleep, a lock that is held, a process or a pipe that never ends.",
    )


def parsed(data: bytes | bytearray) -> dict[str, Any] | None:
    """A verdict as the fork wrote it, each field of its type; None for anything else that the
    learner's code wrote."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or answer.get("state") not in STATES:
        return None
    texts = {name: str(answer.get(name) or "") for name in ("state", "message", "look", "code")}
    line, good = answer.get("line"), answer.get("good")
    return texts | {
        "line": line if type(line) is int and line > 0 else None,
        "good": list(map(str, good)) if isinstance(good, list) else [],
    }


def supervise(job: dict[str, Any]) -> dict[str, Any]:
    """The verdict of one job, which a fork of this process checks."""
    outcome = limited_process.supervise(
        partial(run_job, job), job["seconds"], lambda data: parsed(data) is not None
    )
    result = parsed(outcome.data)
    if outcome.excess == "time":
        result = stopped(job)
    elif outcome.excess == "processes":
        result = verdict(
            "error",
            f"Your code had more than {limited_process.PROCESSES} processes at a time and was "
            "stopped",
        )
    elif outcome.excess:
        result = verdict(
            "error",
            "Your code and the processes that it started took more than "
            f"{limited_process.MEMORY >> 20:,} MiB and were stopped",
        )
    elif result is None and outcome.data:
        result = verdict(
            "error",
            "Your code wrote to a file descriptor that is the check's; write to files that "
            "it opened itself",
        )
    elif result is None:
        result = verdict("error", "Your code ended the process before the check was over")
    return result | {"printed": outcome.printed, "seconds": outcome.seconds}


def main() -> None:
    """Check what there is to check."""
    limited_process.prepare_worker()
    import torch

    # a fork of a process with a pool of threads would wait for them for ever
    torch.set_num_threads(1)
    from . import check_report, real_model  # noqa: F401  what every check needs, loaded once

    real_model.real()
    for job, answer in limited_process.jobs():
        try:
            if "optim" in Path(job["exercise"]).read_text(encoding="utf-8"):
                importlib.import_module(OPTIMIZER)
            result = supervise(job)
        except OSError as error:
            result = verdict("error", f"The check could not be started: {error}")
        answer(result)


if __name__ == "__main__":
    main()

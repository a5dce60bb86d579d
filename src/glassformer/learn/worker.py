"""The process that runs learners' code: ``python -m glassformer.learn.worker``, a job a line in, a
verdict a line out.

Torch is loaded once. Each job is a fork of its own: in a session of its own, without input, its
printing caught. The limits of computing time, memory and number of processes hold for it and all
that it starts together, that of a file's size for each file. This guards a class against accidents:
what fails is the verdict on that file alone. It is no sandbox: the code runs with the teacher's
rights, may read and write the teacher's files, and can forge its own verdict.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import json
import os
import random
import re
import resource
import selectors
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from .processes import (
    ADOPT_ORPHANS,
    DIE_WITH_PARENT,
    anonymous_memory,
    descendants,
    end_all,
    set_process_option,
)

SLOW = ("torch._dynamo",)  # PyTorch's optimizers import it when they are first used: seconds
MOST = 10_000  # bytes of printing that are kept
MEMORY = 2 << 30  # bytes that a learner's code may take beyond what is loaded
FILE = 64 << 20  # bytes that it may write into one file
PROCESSES = 64  # that it may have at a time
LONGEST = 1 << 20  # bytes of a verdict
# seconds on the wall for each of the processor's: others compute here too, and who sleeps computes
# nothing
WALL = 5
GRACE = 3.0  # seconds between the clock that names the line and the end of the process
LOOK = 0.2  # seconds between two looks at what the processes of a job take
READY = "ready"


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
            from ..core.errors import nearest

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


def load(path: str, name: str) -> ModuleType:
    """Run a file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check(file: str, exercise: str, seed: int, display_name: str | None = None) -> dict[str, Any]:
    """The verdict on a learner's file: state, message, look, line and code, and what is good.

    ``state`` is passed, failed (wrong), todo (not written yet) or error (theirs). ``shown`` is how
    its file is called.
    """
    import torch

    from .report import CheckReport, Wrong

    # the check's own are nothing to the learner
    warnings.filterwarnings("ignore", module="exercise$")
    report = CheckReport(seed)
    # what the learner's code draws, repeated by a seed too; not what is drawn for it
    learner_seed = seed + (1 << 32)
    torch.manual_seed(learner_seed)
    random.seed(learner_seed)
    verdict: dict[str, Any] = {
        "state": "passed",
        "message": "",
        "look": "",
        "line": None,
        "code": "",
    }
    name = display_name or Path(file).name
    try:
        load(exercise, "exercise").check(LearnerModule(load(file, "theirs")), report)
    except Wrong as wrong:
        verdict |= {"state": "failed", "message": str(wrong), "look": wrong.look}
    except Missing as missing:
        verdict |= {"state": "failed", "message": str(missing)}
    except SyntaxError as error:
        if error.filename != file:
            raise
        code = (error.text or "").strip()
        verdict |= {
            "state": "error",
            "message": f"{error.msg}: Python cannot read your file",
            "line": error.lineno,
        }
        verdict |= {"code": code}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a learner's file that calls exit()
        verdict |= explained(error, file, name)
    return verdict | {"good": report.good}


def explained(error: BaseException, file: str, name: str) -> dict[str, Any]:
    """An error of the learner's code as theirs, with its line; one of the check where none of their
    lines led to it."""
    steps = steps_of(error, file)
    description = " ".join(f"{type(error).__name__}: {error}".split())[:600].removesuffix(":")
    if isinstance(error, NotImplementedError) and steps:
        message = f"{steps[-1].name} is not written yet"
        return {
            "state": "todo",
            "message": message,
            "line": steps[-1].lineno,
            "code": _todo(file, steps[-1].lineno),
        }
    if "allocate memory" in description or isinstance(error, MemoryError):
        description += f" (a check may take {MEMORY >> 30} GiB)"
    if steps:
        location = "" if steps[-1].name == "<module>" else f" in {steps[-1].name}"
        verdict = {
            "message": f"Your code raised an error{location}: {description}",
            "line": steps[-1].lineno,
        }
        return verdict | {"state": "error", "code": (steps[-1].line or "").strip()}
    if isinstance(error, TypeError) and (
        call := re.search(r"(\w+)\(\) (takes|got|missing)", str(error))
    ):
        return {
            "state": "error",
            "message": f"{call[1]} cannot be called as the exercise asks: {description}",
        }
    at = "".join(
        f", line {step.lineno}" for step in steps_of(error, sys.modules["exercise"].__file__)[-1:]
    )
    check = f"{Path(sys.modules['exercise'].__file__ or '').name}{at}"
    message = f"The check ({check}) could not go on with what {name} gave it: {description}"
    look = (
        "the kind of what you return; if it is the kind that is asked for, the check itself "
        "is at fault"
    )
    return {"state": "error", "message": message, "look": look}


def steps_of(error: BaseException, file: str | None) -> list[traceback.FrameSummary]:
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


# ---------------------------------------------------------------------------------- the process of
# its own


def run_job(job: dict[str, Any], verdict_fd: int) -> NoReturn:
    """In the fork: check, write the verdict to the descriptor ``said``, end."""

    def answer(verdict: dict[str, Any]) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        data = json.dumps(verdict).encode()
        while data:
            data = data[os.write(verdict_fd, data) :]
        os._exit(0)

    def time_is_up(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != job["file"]:
            frame = frame.f_back
        line = None if frame is None else frame.f_lineno
        timeout = stopped(job, None if number == signal.SIGPROF else time.process_time() - start)
        answer(timeout | {"line": line, "code": _line(job["file"], line)})

    start = time.process_time()
    if str(job.get("shown")).endswith(".ipynb"):  # what Jupyter gives every cell
        builtins.display = print  # type: ignore[attr-defined]
    try:
        limit(job["seconds"])
        for clock, number, seconds in (
            (signal.ITIMER_PROF, signal.SIGPROF, job["seconds"]),
            (signal.ITIMER_REAL, signal.SIGALRM, WALL * job["seconds"]),
        ):
            signal.signal(number, time_is_up)
            signal.setitimer(clock, seconds)
        sys.path.insert(0, job["folder"])  # where the learner's other files are
        os.chdir(job["folder"])
        verdict = check(job["file"], job["exercise"], job["seed"], job.get("shown"))
        answer(verdict | {"slow": [name for name in SLOW if name in sys.modules]})
    except BaseException as error:
        answer(
            {
                "state": "error",
                "message": f"The check itself failed: {type(error).__name__}: {error}",
                "good": [],
            }
        )


def stopped(job: dict[str, Any], computed: float | None = None) -> dict[str, Any]:
    """The verdict on code that does not end: too long a computing, or a wait that ``computed`` few
    seconds."""
    message = (
        f"Your code was still running after {job['seconds']:g} seconds of computing and was stopped"
    )
    look = (
        "A loop that never ends? A while whose condition never changes, or a step that moves "
        "nothing."
    )
    if computed is not None:
        message = f"Your code had not ended after {job['seconds']:g} seconds of computing or "
        message += (
            f"{WALL * job['seconds']:g} by the clock: it computed {computed:.1f} and was stopped"
        )
        look = (
            "What does it wait for? A sleep, a lock that is held, a process or a pipe that "
            "never ends."
        )
    return {
        "state": "stopped",
        "message": message,
        "look": look,
        "good": [],
        "line": None,
        "code": "",
    }


def _line(file: str, line: int | None) -> str:
    with contextlib.suppress(OSError, IndexError):
        return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip() if line else ""
    return ""


def limit(seconds: float) -> None:
    """Bound what this process may take; RLIMIT_DATA is held by Linux alone."""
    with contextlib.suppress(OSError, ValueError):
        match = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
        most = MEMORY + (int(match[1]) << 10 if match else 0)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    with contextlib.suppress(OSError, ValueError):  # where nobody is left to stop it
        most = int(WALL * seconds + GRACE + 60)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def excess(job: dict[str, Any], child: int) -> dict[str, Any] | None:
    """The verdict on a job whose processes together take more than they may; None where they do
    not."""
    processes = descendants()
    computed = sum(processes.values())
    if computed > job["seconds"] + GRACE:
        return stopped(job)
    if computed > job["seconds"] and len(processes) > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGPROF)  # it names the line, as it does when it computes alone
    loaded = anonymous_memory(os.getpid())  # a fork holds what is loaded here
    message = ""
    if sum(max(0, anonymous_memory(pid) - loaded) for pid in processes) > MEMORY:
        message = (
            f"Your code and the processes that it started took more than {MEMORY >> 20:,} "
            "MiB and were stopped"
        )
    if len(processes) > PROCESSES:
        message = f"Your code had more than {PROCESSES} processes at a time and was stopped"
    return {"state": "error", "message": message, "good": []} if message else None


def parsed(data: bytes | bytearray) -> dict[str, Any] | None:
    """A verdict as the fork wrote it, each field of its type; None for anything else that the
    learner's code wrote."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or answer.get("state") not in (
        "passed",
        "failed",
        "todo",
        "error",
        "stopped",
    ):
        return None
    verdict: dict[str, Any] = {"state": answer["state"]}
    verdict |= {name: str(answer.get(name) or "") for name in ("message", "look", "code")}
    good, line, slow = answer.get("good"), answer.get("line"), answer.get("slow")
    verdict["good"] = [str(text) for text in good] if isinstance(good, list) else []
    verdict["line"] = line if type(line) is int and line > 0 else None
    return verdict | {"slow": [name for name in SLOW if isinstance(slow, list) and name in slow]}


def supervise(job: dict[str, Any]) -> dict[str, Any]:
    """Fork for one job, catch what it prints, end it in time; its verdict."""
    start = time.monotonic()
    (printed, out), (verdict_reader, verdict_writer) = os.pipe(), os.pipe()
    sys.stdout.flush()
    worker, child = os.getpid(), os.fork()
    if child == 0:
        os.setsid()
        set_process_option(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != worker:
            os._exit(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (out, 2)):
            os.dup2(source, target)
        # the worker's own pipes among them
        for end in [int(path.name) for path in Path("/dev/fd").iterdir()]:
            with contextlib.suppress(OSError):
                if end > 2 and end != verdict_writer:
                    os.close(end)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        run_job(job, verdict_writer)
    os.close(out)
    os.close(verdict_writer)
    buffers: dict[int, bytearray] = {printed: bytearray(), verdict_reader: bytearray()}
    more, violation = False, None
    try:
        with selectors.DefaultSelector() as watching:
            for end in buffers:
                watching.register(end, selectors.EVENT_READ)
            deadline, look = start + WALL * job["seconds"] + GRACE, start + LOOK
            while (
                verdict_reader in watching.get_map()
                and violation is None
                and (now := time.monotonic()) < deadline
            ):
                if parsed(buffers[verdict_reader]) is not None:  # its forks hold the pipe open
                    break
                more |= _read(watching, buffers, min(look, deadline) - now, verdict_reader)
                if time.monotonic() >= look:
                    violation, look = excess(job, child), time.monotonic() + LOOK
            end_all(child)
            while watching.get_map() and _read(watching, buffers, 0.2, verdict_reader):
                pass
    finally:
        end_all(child)
        os.close(printed)
        os.close(verdict_reader)
    seconds = time.monotonic() - start
    verdict = violation or parsed(buffers[verdict_reader])
    if verdict is None and buffers[verdict_reader]:
        message = (
            "Your code wrote to a file descriptor that is the check's; write to files that "
            "it opened itself"
        )
        verdict = {"state": "error", "message": message, "good": []}
    elif verdict is None:
        late = seconds >= job["seconds"]
        ended = {
            "state": "error",
            "message": "Your code ended the process before the check was over",
            "good": [],
        }
        verdict = stopped(job) if late else ended
    text = bytes(buffers[printed][:MOST]).decode("utf-8", "replace")
    return verdict | {"printed": text + ("\n..." if more else ""), "seconds": round(seconds, 2)}


def _read(
    watching: selectors.BaseSelector, buffers: dict[int, bytearray], wait: float, heard: int
) -> bool:
    """Take what has come; whether more was printed than is kept, or anything came at all."""
    beyond = False
    for key, _ in watching.select(wait):
        data = os.read(key.fd, 1 << 16)
        if not data:
            watching.unregister(key.fd)
        elif len(buffers[key.fd]) <= (LONGEST if key.fd == heard else MOST):
            buffers[key.fd] += data
        else:
            beyond = True
    return beyond


def main() -> None:
    """Read jobs until there are no more. At Ctrl-C the checker ends this process, and with it the
    job under way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    set_process_option(ADOPT_ORPHANS, 1)  # so that no process of a learner is lost from sight
    import torch

    # a fork of a process with a pool of threads would wait for them for ever
    torch.set_num_threads(1)
    from . import models, report  # noqa: F401  what every check needs, loaded once

    models.real()

    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(READY, file=channel, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            verdict = supervise(job)
        except OSError as error:
            verdict = {
                "state": "error",
                "message": f"The check could not be started: {error}",
                "good": [],
            }
        for name in verdict.pop("slow", ()):  # what this one had to import, the next one finds
            importlib.import_module(name)
        print(json.dumps(verdict | {"job": job["job"]}), file=channel, flush=True)


if __name__ == "__main__":
    main()

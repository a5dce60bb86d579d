"""Unit tests of answers that are code: ``python -m glassformer.tasks.unit_tests`` is the process that
runs them, a job a line in, the share that passes a line out (tasks/limited_process.py).

It is no sandbox: an answer runs with the user's rights, and can forge its own reward.
"""

from __future__ import annotations

import atexit
import os
import re
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from . import limited_process

WORKER = limited_process.LimitedWorker((sys.executable, "-m", "glassformer.tasks.unit_tests"))
LOCK = threading.Lock()
BLOCK = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
ANSWER = "answer.py"
atexit.register(WORKER.close)


def code_of(answer: str) -> str:
    """The Python in an answer: its blocks of Python, else those of no language, else all of it."""
    blocks = BLOCK.findall(answer)
    for languages in (("python", "py"), ("",)):
        code = [code for language, code in blocks if language.lower() in languages]
        if code:
            return "\n".join(code)
    return answer


def share_passed(answer: str, tests: Sequence[str], seconds: float) -> float:
    """The share of tests that raise nothing behind the answer's code, within so many seconds of
    computing in all."""
    with tempfile.TemporaryDirectory(
        prefix="glassformer-tests-", ignore_cleanup_errors=True
    ) as folder:
        for name, code in {ANSWER: code_of(answer), **_named(tests)}.items():
            (Path(folder) / name).write_text(code, encoding="utf-8", errors="replace")
        job = {"folder": folder, "tests": len(tests), "seconds": seconds}
        with LOCK:
            result = WORKER.ask(job, seconds) or {}
    return float(result.get("passed", 0)) / len(tests)


def _named(tests: Sequence[str]) -> dict[str, str]:
    return {f"test_{number}.py": test for number, test in enumerate(tests)}


def run_job(job: dict[str, Any], end: int) -> NoReturn:
    """In the fork: run the answer, then each test with its names; write 1 or 0 for each."""
    process = os.getpid()
    folder = Path(job["folder"])
    seconds = job["seconds"]
    try:
        limited_process.limit(seconds)
        # their signals end the process
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, limited_process.WALL * seconds)
        sys.path.insert(0, str(folder))
        os.chdir(folder)
        names = vars(limited_process.load_module(folder / ANSWER, "answer"))
        for number in range(job["tests"]):
            passed = _passes(folder / f"test_{number}.py", names)
            if os.getpid() != process:  # the answer forked
                break
            os.write(end, b"1" if passed else b"0")
    finally:
        os._exit(0)


def _passes(path: Path, names: dict[str, Any]) -> bool:
    try:
        runpy.run_path(str(path), names)
    except BaseException:  # SystemExit too
        return False
    return True


def supervise(job: dict[str, Any]) -> dict[str, int]:
    """Counts the tests of a job that pass; a fork of this process runs them."""
    count = job["tests"]
    outcome = limited_process.supervise(
        partial(run_job, job), job["seconds"], lambda data: len(data) >= count
    )
    is_honest = len(outcome.data) <= count and not outcome.data.strip(b"01")
    return {"passed": outcome.data.count(b"1") if is_honest else 0}


def main() -> None:
    """Run the tests that there are to run."""
    limited_process.prepare_worker()
    for job, answer in limited_process.jobs():
        try:
            answer(supervise(job))
        except OSError:  # no more processes or descriptors
            answer({"passed": 0})


if __name__ == "__main__":
    main()

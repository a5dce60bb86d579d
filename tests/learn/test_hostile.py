"""A learner's file that harms: it fails alone, the next learner is checked, and the terminal is
safe, and its processes end (tasks/limited_process.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassformer.learn import checking
from glassformer.learn.checking import Checker
from glassformer.learn.exercise import find
from glassformer.tasks import limited_process

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of several processes need /proc"
)


def check(code, checker, folder, seconds=None):
    """The verdict on this code, and that the next learner's right answer passes."""
    path = folder / "mine.py"
    right = folder / "right.py"
    path.write_text(f"# exercise: causal-mask\n{code}")
    verdict = checker.check(path, seconds=seconds)
    right.write_text(f"# exercise: causal-mask\n{find('causal-mask').solution}")
    second = checker.check(right)
    assert second.state == "passed", second
    return verdict


WRITE_EVERYWHERE = """
import os
for end in range(3, 256):
    try:
        os.write(end, DATA)
    except OSError:
        pass
"""
ACCEPTED = {
    "state": "error",
    "message": 5,
    "look": ["x"],
    "good": 7,
    "line": "two",
    "slow": ["this"],
    "code": None,
}


@pytest.mark.parametrize(
    "data, message",
    [
        (b"\xff\x00 no verdict\n", "wrote to a file descriptor that is the check's"),
        (b'["a", "list"]\n', "wrote to a file descriptor that is the check's"),
        (b'{"state": "perfect"}\n', "wrote to a file descriptor that is the check's"),
        (b"[" * 200_000, "wrote to a file descriptor that is the check's"),
        (b"x" * (3 << 20), "wrote to a file descriptor that is the check's"),
        (json.dumps(ACCEPTED).encode(), "5"),
    ],
    ids=["bytes", "list", "state", "deep", "long", "kinds"],
)
def test_what_is_written_to_other_descriptors_is_that_learners(data, message, checker, tmp_path):
    code = WRITE_EVERYWHERE.replace(
        "DATA", f"{data[:8]!r} * {len(data) // 8}" if len(data) > 999 else repr(data)
    )
    verdict = check(code + "os._exit(0)\n", checker, tmp_path)
    assert verdict.state == "error" and message in verdict.message and verdict.where == "", verdict


@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT", "SIGSTOP"])
def test_who_ends_the_checks_ends_only_the_own(number, checker, tmp_path, monkeypatch):
    monkeypatch.setattr(limited_process, "EXTRA_SECONDS", 3)
    code = f"import os, signal, time\nos.kill(os.getppid(), signal.{number})\n"
    code += "time.sleep(0.5)\nraise OSError('came here')\n"
    verdict = check(code, checker, tmp_path, seconds=0.5)
    ended = (
        "OSError: came here"
        if number == "SIGINT"
        else ("ended or stopped the process that runs the checks")
    )
    assert verdict.state == "error" and ended in verdict.message, verdict


def test_a_class_goes_on_and_nothing_steers_the_terminal(checker, tmp_path):
    escape = "\x1b]0;title\x07\x1b[2J\x9b31m"
    codes = {
        "anna": f"print({escape!r}, end='\\r\\tx\\n')\nraise ValueError({escape!r} + "
        "'two\\nlines')\n",
        "ben": f"def causal_mask(queries, keys): return {escape!r}\n",
        "cem": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
        f"dora{escape}": find("causal-mask").solution,
        "eve": "x = " + "(" * 100_000 + "\n",
        "finn": "raise ValueError('\\ud800')\n",
    }
    for learner, code in codes.items():
        (tmp_path / learner).mkdir()
        (tmp_path / learner / "mine.py").write_text(f"# exercise: causal-mask\n{code}")
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", "learn", "check", "--all", str(tmp_path)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=os.environ | {"COLUMNS": "250"},
    )
    assert done.returncode == 0 and "6 learners, 6 files, 1 passed" in done.stderr, done.stderr
    assert all(
        letter.isprintable() or letter == "\n"
        for letter in done.stdout + done.stderr.replace("\r", "")
    ), done
    anna = checker.check(tmp_path / "anna" / "mine.py")
    assert anna.printed == "\\x1b]0;title\\x07\\x1b[2J\\x9b31m\n\tx\n"
    assert anna.message.endswith("ValueError: \\x1b]0;title\\x07\\x1b[2J\\x9b31mtwo lines"), anna


def test_a_file_of_a_check_has_a_largest_size(checker, tmp_path):
    code = "with open('large', 'wb') as file:\n    file.truncate(SIZE)\n"
    # it defines no mask
    assert check(code.replace("SIZE", "64 << 20"), checker, tmp_path).state == "failed"
    verdict = check(code.replace("SIZE", "(64 << 20) + 1"), checker, tmp_path)
    assert (
        verdict.state == "error"
        and "File too large" in verdict.message
        and verdict.where == "line 3"
    ), verdict


@linux
def test_a_check_has_a_largest_memory(checker, tmp_path):
    """Without a limit the system gives all of it: nothing is written there."""
    code = (
        "import mmap\nroom = [mmap.mmap(-1, 1 << 28, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) "
        "for _ in range(COUNT)]\n"
    )
    # it defines no mask
    assert check(code.replace("COUNT", "7"), checker, tmp_path).state == "failed"
    verdict = check(code.replace("COUNT", "9"), checker, tmp_path)
    assert verdict.state == "error" and "a check may take 2 GiB" in verdict.message, verdict


def test_the_page_says_the_limits_and_that_they_are_no_sandbox():
    page = Path(__file__).parents[2] / "docs/learn.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    seconds = [find(name).seconds for name in ("causal-mask", "mini-transformer")]
    memory, processes = limited_process.MEMORY >> 30, limited_process.PROCESSES
    for sentence in (
        "{:g} seconds of the processor (mini-transformer: {:g})".format(*seconds),
        f"{memory} GiB of memory and {processes} processes",
        f"may be {limited_process.FILE >> 20} MiB long",
        "They are not a sandbox: the code has your rights",
    ):
        assert sentence in text, sentence
    assert limited_process.WALL == 5 and "more than five times its seconds" in text
    assert limited_process.__doc__ is not None and "It is no sandbox" in limited_process.__doc__


FORKS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        DO
        time.sleep(1000)
time.sleep(1000)
"""


@linux
def test_the_limits_are_of_all_processes_together(tmp_path, monkeypatch):
    small = (
        "from glassformer.tasks import limited_process; limited_process.MEMORY = 300 << 20; "
        "limited_process.PROCESSES = 8; from glassformer.learn import worker; worker.main()"
    )
    monkeypatch.setattr(checking, "COMMAND", (sys.executable, "-c", small))
    with Checker() as checker:
        item = FORKS.replace("DO", "room = b'x' * (COUNT << 20)")
        assert check(item.replace("COUNT", "50"), checker, tmp_path, 0.5).state == "stopped"
        verdict = check(item.replace("COUNT", "150"), checker, tmp_path, 5)
        assert verdict.state == "error" and "took more than 300 MiB" in verdict.message, verdict
        verdict = check(
            "import os, time\nfor _ in range(9): os.fork() or time.sleep(1000)\ntime.sleep(1000)\n",
            checker,
            tmp_path,
        )
        assert verdict.state == "error" and "more than 8 processes" in verdict.message, verdict
        started = time.monotonic()
        verdict = check(FORKS.replace("DO", "while True: pass"), checker, tmp_path, 2)
        assert verdict.state == "stopped" and "after 2 seconds of computing" in verdict.message, (
            verdict
        )
        assert verdict.where == "line 9" and verdict.seconds < 18, (
            verdict,
            time.monotonic() - started,
        )


@linux
def test_no_process_outlives_its_check(checker, tmp_path):
    """Also one that left the session of its parent, which is gone."""
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not os.path.exists({str(tmp_path / "pid")!r}): time.sleep(0.01)
time.sleep(0.2)
"""
    check(code, checker, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)

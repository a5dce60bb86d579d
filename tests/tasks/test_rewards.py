"""What an answer is worth, and what a reward may do wrong."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from glassformer.tasks.rewards import REWARDS, compute_reward, find_reward
from mistakes import mistake


@pytest.mark.parametrize(
    ("name", "answer", "record", "value"),
    [
        ("exact", " 12\n", {"answer": 12}, 1),
        ("exact", "12.", {"answer": "12"}, 0),
        ("exact", "", {"answer": "12"}, 0),
        ("number", "So 3 + 4 = 1,007.50", {"answer": "#### 1007.5"}, 1),
        ("number", "no idea", {"answer": "7"}, 0),
        ("number", "7 or 8", {"answer": "7"}, 0),
        ("regex", "abbb", {"answer": "ab+"}, 1),
        ("regex", "abbbc", {"answer": "ab+"}, 0),
    ],
)
def test_the_worth_of_an_answer(name, answer, record, value):
    assert compute_reward(name, answer, record, "line 1", 5) == value


def test_json_is_held_to_a_schema():
    pytest.importorskip("jsonschema")
    record = {"schema": {"type": "object", "required": ["a"]}}
    for answer, value in (('{"a": 1}', 1), ('{"b": 1}', 0), ("{", 0)):
        assert compute_reward("json_schema", answer, record, "line 1", 5) == value


def waits(answer, record):
    threading.Event().wait(3)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda answer, record: float("nan"), "is nan"),
        (lambda answer, record: "good", "is 'good'"),
        (lambda answer, record: None, "is None"),
        (lambda answer, record: 1 / 0, "raised ZeroDivisionError"),
        (waits, "took longer than 0.1 seconds"),
    ],
    ids=["nan", "text", "none", "raises", "waits"],
)
def test_a_reward_that_is_no_number_is_named_by_its_line(function, words, monkeypatch):
    monkeypatch.setitem(REWARDS, "of_mine", function)
    with mistake("prompts line 3", "reward of_mine", words):
        compute_reward("of_mine", "a", {}, "prompts line 3", 0.1)


@pytest.mark.parametrize(
    ("name", "record", "words"),
    [
        ("exact", {}, 'has no "answer"'),
        ("number", {"answer": "seven"}, "without a number"),
        ("regex", {"answer": "("}, "is no pattern"),
    ],
)
def test_a_record_that_a_reward_cannot_use(name, record, words):
    with mistake("line 3", words):
        compute_reward(name, "a", record, "line 3", 5)


def test_an_unknown_reward_is_refused():
    with mistake("There is no reward", "exact, number"):
        find_reward("exakt")


# ---------------------------------------------------------------------------------- unit tests

ADD = "def add(a, b):\n    return a + b\n"
TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]


def share(answer, tests=TESTS, seconds=5):
    return compute_reward("unit_tests", answer, {"tests": tests}, "line 1", seconds)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (ADD, 1),
        (f"I add both.\n```python\n{ADD}```\nIt prints:\n```text\nassert False\n```", 1),
        (f"```\n{ADD}```", 1),
        (f"```py\n{ADD}", 1),  # cut at its end
        ("def add(a, b):\n    return int(a) + int(b)", 2 / 3),
        ("def add(a, b):\n    raise SystemExit(0)", 0),
        ("print('\\ud800')\nadd = sum", 0),
        ("I do not know.", 0),
        ("", 0),
        ("from dataclasses import dataclass\n@dataclass\nclass Pair:\n    a: int\n" + ADD, 1),
        (f"import answer, sys\n{ADD}\nassert sys.stdin.read() == ''", 1),
    ],
)
def test_code_is_worth_the_share_of_tests_that_it_passes(answer, value):
    assert share(answer) == pytest.approx(value)


def test_a_text_is_one_test_and_tests_do_not_see_one_anothers_names():
    assert share(ADD, "assert add(1, 2) == 3\nassert add(0, 0) == 1") == 0
    assert share(ADD, ["add = None", "assert add(1, 2) == 3"]) == 1


LATER = {
    "endless": "while True: pass",
    "asleep": "import time\ntime.sleep(1000)",
    "memory": "room = bytearray(1 << 34)",
    "output": "while True: print('x' * 10_000)",
    "forks": "import os\nwhile True: os.fork()",
    "ends": "import os\nos._exit(0)",
    "kills": "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1000)",
    "left behind": "import os, signal, time\nif os.fork() == 0:\n    os.setsid()\n"
    "    os.fork() and os._exit(0)\n    open(PATH, 'w').write(str(os.getpid()))\n"
    "    time.sleep(1000)\nwhile not os.path.exists(PATH): time.sleep(0.01)\ntime.sleep(0.1)\n"
    "os.kill(os.getppid(), signal.SIGKILL)",
    "writes": "import os\nfor end in range(3, 99):\n    try: os.write(end, b'1' * 99)\n"
    "    except OSError: pass\nos._exit(0)",
    "file": "open('large', 'w').truncate(1 << 40)",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits need /proc")
@pytest.mark.parametrize("name", LATER)
def test_an_answer_that_harms_is_worth_nothing_and_the_next_one_is_tested(name, tmp_path):
    """Nothing of it is alive then."""
    path = tmp_path / "pid"
    code = LATER[name].replace("PATH", repr(str(path)))
    assert share(f"{code}\n{ADD}", seconds=0.2) == 0
    assert share(ADD) == 1
    if name == "left behind":
        status = Path(f"/proc/{path.read_text()}/status")  # a zombie is dead
        assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_test_without_an_end_leaves_those_before_it():
    assert share(ADD, [*TESTS[:2], "while True: pass", "pass"], 0.2) == 0.5


@pytest.mark.parametrize("tests", [None, [], "", [1], {"a": "b"}])
def test_a_record_without_tests_is_named_by_its_line(tests):
    with mistake("line 1", 'has no "tests"'):
        share(ADD, tests)

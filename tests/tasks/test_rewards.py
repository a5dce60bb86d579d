"""What an answer is worth, and what a reward may do wrong."""

from __future__ import annotations

import threading

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

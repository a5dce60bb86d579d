"""Rewards: what an answer is worth, by name, or a function in a file of the user's own (``--use``).

    from glassformer.tasks.rewards import reward

    @reward
    def short(answer, record):      train.objective.reward = "short"
        return 1 / (1 + len(answer))

A function takes the text of an answer and the record that it answers, and returns a number. One that
takes ``seconds`` as well holds that limit itself.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..core.errors import Stuck, UserError, need

Record: TypeAlias = Mapping[str, Any]
RewardFunction: TypeAlias = Callable[..., float]
REWARDS: dict[str, RewardFunction] = {}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class FailedReward(Stuck):
    """A reward that is no number, or that did not come; the weights are those from before."""


def reward(function: RewardFunction) -> RewardFunction:
    """Make a function known by its name."""
    REWARDS[function.__name__] = function
    return function


def _expected(record: Record) -> str:
    need("answer" in record, 'has no "answer", which this reward compares with; add it.')
    return str(record["answer"]).strip()


@reward
def exact(answer: str, record: Record) -> float:
    """1 where the answer is the record's."""
    return float(answer.strip() == _expected(record))


@reward
def number(answer: str, record: Record) -> float:
    """1 where the last number of the answer is that of the record's."""
    numbers = NUMBER.findall(answer)
    expected = NUMBER.findall(_expected(record))
    need(bool(expected), 'has an "answer" without a number; fix or remove it.')
    return float(bool(numbers) and _value(numbers[-1]) == _value(expected[-1]))


def _value(digits: str) -> float:
    return float(digits.replace(",", ""))


@reward
def regex(answer: str, record: Record) -> float:
    """1 where the record's answer, a pattern, matches all of the answer."""
    try:
        return float(re.fullmatch(_expected(record), answer.strip(), re.DOTALL) is not None)
    except re.error as error:
        raise UserError(f'has an "answer" that is no pattern ({error}); fix it.') from None


@reward
def json_schema(answer: str, record: Record) -> float:
    """1 where the answer is JSON that fits the record's ``schema``."""
    try:
        import jsonschema  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("needs: pip install jsonschema.") from None
    try:
        jsonschema.validate(json.loads(answer), record.get("schema", {}))
    except (ValueError, jsonschema.ValidationError):
        return 0.0
    except jsonschema.SchemaError:
        raise UserError('has a "schema" that is none; fix it.') from None
    return 1.0


@reward
def unit_tests(answer: str, record: Record, seconds: float) -> float:
    """The share of the record's ``tests`` that the answer, Python code, passes."""
    from .unit_tests import share_passed

    value = record.get("tests")
    tests: list[Any] = value if isinstance(value, list) else [value]
    need(
        bool(tests) and all(isinstance(test, str) and test.strip() for test in tests),
        'has no "tests", a list of Python texts; add it or remove that line.',
    )
    return share_passed(answer, tests, seconds)


def find_reward(name: str) -> RewardFunction:
    """The reward of that name."""
    if name not in REWARDS:
        raise UserError(
            f'There is no reward "{name}"; give {", ".join(REWARDS)}, or a function of your own: '
            "--use FILE."
        )
    return REWARDS[name]


def compute_reward(name: str, answer: str, record: Record, location: str, seconds: float) -> float:
    """The reward of an answer. FailedReward, with the line, where it raises, is no finite number, or
    takes longer than ``seconds``."""
    function, outcome = find_reward(name), list[Any]()
    keeps_time = "seconds" in inspect.signature(function).parameters
    limit = {"seconds": seconds} if keeps_time else {}

    def run() -> None:
        try:
            outcome.append(function(answer, record, **limit))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(None if keeps_time else seconds)
    value = outcome[0] if outcome else None
    if isinstance(value, UserError):
        raise FailedReward(f"{location} {value}")
    if not outcome:
        problem = f"took longer than {seconds:g} seconds"
    elif isinstance(value, Exception):
        problem = f"raised {type(value).__name__}: {' '.join(str(value).split())[:80]}"
    elif isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    else:
        problem = f"is {value!r:.40}, which is no finite number"
    raise FailedReward(
        f"{location}: the reward {name} {problem}; mend the function and go on with --resume "
        "from the weights before this step."
    )

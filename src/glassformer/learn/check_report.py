"""The report of a check: what is right, or the first thing that is wrong, its place, and where to
look at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

Slips: TypeAlias = Mapping[str, Any]
"""A hint by what a typical wrong solution would give there: a value, or a function
that makes it."""


class Wrong(Exception):
    """The learner's answer is not what it should be; ``look`` says what to look at."""

    def __init__(self, message: str, look: str = "") -> None:
        super().__init__(message)
        self.look = look


class CheckReport:
    """Given to ``check(learner, report)``: draws the inputs, compares, and keeps what went well.

    Inputs come from generators of its own, so nothing that the learner's code seeds makes them
    known beforehand.
    """

    def __init__(self, seed: int) -> None:
        self.good: list[str] = []
        self.random = random.Random(seed)
        self._draws = torch.Generator().manual_seed(seed)

    # ------------------------------------------------------------------------------------ to draw

    def randn(self, *shape: int) -> Tensor:
        """Normal numbers of this shape."""
        return torch.randn(*shape, generator=self._draws)

    def rand(self, *shape: int) -> Tensor:
        """Numbers from 0 up to, not including, 1, each as likely."""
        return torch.rand(*shape, generator=self._draws)

    def randint(self, low: int, high: int, shape: Sequence[int]) -> Tensor:
        """Integers from ``low`` up to, not including, ``high``."""
        return torch.randint(low, high, tuple(shape), generator=self._draws)

    # ------------------------------------------------------------------------------------ to say

    def say(self, text: str) -> None:
        """One thing that is right, for the learner to read."""
        self.good.append(text)

    def true(self, fact: Any, message: str, look: str = "") -> None:
        """Go on if the fact holds; else the learner reads ``message`` and what to ``look`` at."""
        if not bool(fact):
            raise Wrong(message, look)

    def equal(
        self,
        name: str,
        actual: Any,
        expected: Any,
        *,
        tolerance: float = 1e-4,
        slips: Slips | None = None,
        look: str = "",
    ) -> None:
        """Go on if the two are the same; else say the first place that differs, and which slip
        gives such numbers.

        Numbers may differ by ``tolerance``, absolutely and of their size. ``actual`` may be a
        tensor, an array, a list or a number, as long as it holds what ``expected`` does; texts and
        lists of texts are compared exactly.
        """
        if message := difference(name, actual, expected, tolerance):
            for advice, value in (slips or {}).items():
                value = value() if callable(value) else value
                if not difference(name, actual, value, tolerance):
                    look = advice
                    break
            raise Wrong(message, look)

    def call(
        self,
        function: Callable[..., Any],
        solution: Callable[..., Any],
        *args: Any,
        name: str = "",
        **options: Any,
    ) -> None:
        """``equal`` of what the learner's function and the solution give for these arguments.

        The name is the solution's with its parameters, where none is given.
        """
        code = solution.__code__
        parameters = ", ".join(code.co_varnames[: code.co_argcount])
        expected = solution(*args)
        self.equal(
            name or f"{solution.__name__}({parameters})", function(*args), expected, **options
        )

    def pair(self, result: Any, message: str) -> None:
        """Go on if the result is a tuple of two."""
        self.true(isinstance(result, tuple) and len(result) == 2, message)

    @contextmanager
    def same(self, name: str, compute: Callable[[], Any], tolerance: float = 1e-4) -> Iterator[Any]:
        """Compute before and after the block, which puts the learner's part in, and compare."""
        before = compute()
        yield before
        self.equal(name, compute(), before, tolerance=tolerance)


def difference(name: str, actual: Any, expected: Any, tolerance: float = 1e-4) -> str:
    """The first difference between ``actual`` and ``expected``, as a sentence; "" where they agree."""
    if actual is None and expected is not None:
        return f"{name} is None; does every way through your function end in return?"
    if isinstance(expected, (Tensor, float, int)) and not isinstance(expected, bool):
        return _numbers(name, actual, torch.as_tensor(expected), tolerance)
    if isinstance(expected, (list, tuple)) and not isinstance(actual, str):
        return _items(name, actual, expected, tolerance)
    comparable = type(actual) is type(expected) or (
        isinstance(actual, (bool, int)) and isinstance(expected, (bool, int))
    )
    return (
        ""
        if comparable and actual == expected
        else (f"{name} is {quoted(actual)} and should be {quoted(expected)}.")
    )


def _numbers(name: str, actual: Any, expected: Tensor, tolerance: float) -> str:
    try:
        values = torch.as_tensor(actual).detach()
    except (TypeError, ValueError, RuntimeError):
        return (
            f"{name} is {quoted(actual)}, a {type(actual).__name__}; a tensor "
            f"{tuple(expected.shape)} is asked for."
        )
    if values.shape != expected.shape:
        return (
            f"{name} has the shape {tuple(values.shape)} and should have {tuple(expected.shape)}."
        )
    if expected.dtype == torch.bool and values.dtype != torch.bool:
        return f"{name} holds {values.dtype}; booleans are asked for (torch.bool)."
    if values.is_complex():
        return f"{name} holds complex numbers; real ones are asked for."
    computed, right = values.double(), expected.detach().double()
    wrong = ~torch.isclose(computed, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    place = f"{name}[{', '.join(map(str, at))}]" if at else name
    is_bool = expected.dtype == torch.bool
    computed_value, expected_value = (
        bool(x[at]) if is_bool else number(float(x[at])) for x in (computed, right)
    )
    summary = f" {count:,} of {wrong.numel():,} numbers differ." if wrong.numel() > 1 else ""
    return f"{place} is {computed_value} and should be {expected_value}.{summary}"


def _items(name: str, actual: Any, expected: Sequence[Any], tolerance: float) -> str:
    if isinstance(actual, Tensor):
        actual = actual.tolist()
    try:
        items = list(actual)
    except TypeError:
        return (
            f"{name} is {quoted(actual)}, a {type(actual).__name__}; a list of {len(expected)} is "
            "asked for."
        )
    for at, (item, expected_item) in enumerate(zip(items, expected, strict=False)):
        if message := difference(f"{name}[{at}]", item, expected_item, tolerance):
            return message
    return (
        ""
        if len(items) == len(expected)
        else (f"{name}: {len(items)} of them, and there should be {len(expected)}.")
    )


def number(value: float) -> str:
    """A number as the learner reads it."""
    return f"{value:.5g}"


def quoted(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{text[:76]} ..."

"""What a check says: what is right, or the first thing that is wrong, where it is, and what to look
at."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Slips: TypeAlias = Mapping[str, Any]
"""What to look at -> what a typical wrong solution would give there: a value, or a function that
makes it."""


class Wrong(Exception):
    """The learner's answer is not what it should be; ``look`` says what to look at."""

    def __init__(self, message: str, look: str = "") -> None:
        super().__init__(message)
        self.look = look


class Report:
    """Given to ``check(theirs, report)``: draws the inputs, compares, and keeps what went well.

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
        what: str,
        theirs: Any,
        ours: Any,
        *,
        tolerance: float = 1e-4,
        slips: Slips | None = None,
        look: str = "",
    ) -> None:
        """Go on if the two are the same; else say the first place that differs, and which slip
        gives such numbers.

        Numbers may differ by ``tolerance``, absolutely and of their size. ``theirs`` may be a
        tensor, an array, a list or a number, as long as it holds what ``ours`` does; texts and
        lists of texts are compared exactly.
        """
        if message := difference(what, theirs, ours, tolerance):
            for advice, value in (slips or {}).items():
                value = value() if callable(value) else value
                if not difference(what, theirs, value, tolerance):
                    look = advice
                    break
            raise Wrong(message, look)


def difference(what: str, theirs: Any, ours: Any, tolerance: float = 1e-4) -> str:
    """How ``theirs`` differs from ``ours``, in a sentence that names the first place; "" where it
    does not."""
    if theirs is None and ours is not None:
        return f"{what} is None; does every way through your function end in return?"
    if isinstance(ours, (Tensor, float, int)) and not isinstance(ours, bool):
        return _numbers(what, theirs, torch.as_tensor(ours), tolerance)
    if isinstance(ours, (list, tuple)) and not isinstance(theirs, str):
        return _items(what, theirs, ours, tolerance)
    same = type(theirs) is type(ours) or (
        isinstance(theirs, (bool, int)) and isinstance(ours, (bool, int))
    )
    return (
        ""
        if same and theirs == ours
        else (f"{what} is {shown(theirs)} and should be {shown(ours)}.")
    )


def _numbers(what: str, theirs: Any, ours: Tensor, tolerance: float) -> str:
    try:
        given = torch.as_tensor(theirs).detach()
    except (TypeError, ValueError, RuntimeError):
        return (
            f"{what} is {shown(theirs)}, a {type(theirs).__name__}; a tensor "
            f"{tuple(ours.shape)} is asked for."
        )
    if given.shape != ours.shape:
        return f"{what} has the shape {tuple(given.shape)} and should have {tuple(ours.shape)}."
    if ours.dtype == torch.bool and given.dtype != torch.bool:
        return f"{what} holds {given.dtype}; booleans are asked for (torch.bool)."
    if given.is_complex():
        return f"{what} holds complex numbers; real ones are asked for."
    mine, right = given.double(), ours.detach().double()
    wrong = ~torch.isclose(mine, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    place = f"{what}[{', '.join(map(str, at))}]" if at else what
    is_bool = ours.dtype == torch.bool
    one, other = (bool(x[at]) if is_bool else number(float(x[at])) for x in (mine, right))
    rest = f" {count:,} of {wrong.numel():,} numbers differ." if wrong.numel() > 1 else ""
    return f"{place} is {one} and should be {other}.{rest}"


def _items(what: str, theirs: Any, ours: Sequence[Any], tolerance: float) -> str:
    if isinstance(theirs, Tensor):
        theirs = theirs.tolist()
    try:
        given = list(theirs)
    except TypeError:
        return (
            f"{what} is {shown(theirs)}, a {type(theirs).__name__}; a list of {len(ours)} is "
            "asked for."
        )
    for at, (one, other) in enumerate(zip(given, ours, strict=False)):
        if message := difference(f"{what}[{at}]", one, other, tolerance):
            return message
    return (
        ""
        if len(given) == len(ours)
        else (f"{what}: {len(given)} of them, and there should be {len(ours)}.")
    )


def number(value: float) -> str:
    """A number as the learner reads it."""
    return f"{value:.5g}"


def shown(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def close(theirs: Any, ours: Any, tolerance: float = 1e-4) -> bool:
    """Whether the two are the same, as ``Report.equal`` has it."""
    return not difference("", theirs, ours, tolerance)


Part: TypeAlias = Callable[..., Any]
"""A function that the learner wrote."""

"""The agreement of two ways to compute a model: by how much they differ, how much they may, and
where they first do.

B batch, T tokens, S keys, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..core import config
from ..core.files import JsonObject
from .layouts import Values

Status: TypeAlias = Literal["pass", "FAIL", "not run"]
LABELS = ("token_head.write", "pool.write")
ANSWERS = ("logits", *LABELS, "decoder.out", "encoder.out")
"""The results of a model by their paths on a tape; the last hidden states where it has no other."""
ROUNDINGS = {torch.float16: 4.0, torch.bfloat16: 4.0}
"""See ``tolerance``; 16 for a format that is not among them."""
CODES, HALF_A_CODE = 4.0, 1 / 254
"""The same of what quantized weights are multiplied with."""
NAME_WIDTH = 46  # characters of a check's name in a line


@dataclass(frozen=True)
class FirstDifference:
    """The first value, in the order in which the model makes them, that is not what it should be.

    ``address`` is a tape's path and an index into the value of one text, the batch row left out (or
    a weight's name and index). ``value`` was found, ``expected`` is the other way's; None stands
    for infinite and NaN. ``text`` is the number of the text, from 0.
    """

    address: str
    value: float | None
    expected: float | None
    text: int

    def __str__(self) -> str:
        value, expected = (
            "not finite" if x is None else f"{x:.6g}" for x in (self.value, self.expected)
        )
        return f"{self.address} of text {self.text} is {value}, not {expected}"


@dataclass(frozen=True)
class Check:
    """One way to compute the model beside another that must give the same.

    ``difference`` is the largest of an answer (``of``: logits, or what else the model says) and
    ``bound`` what it may be, 0 where the same bits are due; None where nothing was compared or an
    answer was not finite. ``greedy`` of ``tokens`` greedy choices are the same. ``note`` says what
    was compared or why not; ``seconds`` is how long it took.
    """

    kind: str
    name: str
    status: Status
    difference: float | None = None
    bound: float | None = None
    of: str = "logits"
    greedy: int | None = None
    tokens: int | None = None
    first: FirstDifference | None = None
    note: str = ""
    seconds: float = 0.0

    def to_dict(self) -> JsonObject:
        return asdict(self)

    @staticmethod
    def heading() -> str:
        """The line above those of ``line``."""
        return f"{'compared':{NAME_WIDTH}} {'difference':>10} {'bound':>8} {'greedy':>8}  result"

    def line(self) -> str:
        """The check in a line, differences to two digits; and where it fails, a second one that
        says where."""
        difference, bound = map(_short, (self.difference, self.bound))
        greedy = "-" if self.tokens is None else f"{self.greedy}/{self.tokens}"
        line = f"{self.name:{NAME_WIDTH}} {difference:>10} {bound:>8} {greedy:>8}  {self.status}"
        line += f" ({self.note})" if self.note else ""
        return line if self.first is None else f"{line}\n    first: {self.first}"


def _short(number: float | None) -> str:
    if number is None:
        return "-"
    if number:
        return f"{number:.1e}"
    return "0"


def tolerance(cfg: config.Model, dtype: torch.dtype, steps: int, quantized: bool = False) -> float:
    """By how much two right ways may differ, as a share of the largest answer: c * eps *
    sqrt(sublayers + 1).

    Each sublayer rounds what it adds to the stream, at about eps of the whole, and errors of no
    common sign add up as the root of their number; the head is one more, and of a recurrent layer
    each of its ``steps`` rounds its state. c was measured on every family of the tests, on GPT-2
    124M and on stories260K, over all the ways here: at most 8.8 in float32 and float64 (T5, whose
    scores are not scaled), where long sums round at every step, and 1.7 in bfloat16, whose sums are
    kept in float32. It is 16 and 4.

    Before a ``quantized`` weight x is rounded to 8 bits, and where it lies between two codes, what
    rounds it the other way may be smaller than any eps: then half a code of the largest number
    takes the place of eps, c is 4.
    """
    sublayers = 0
    for body in cfg.bodies.values():
        blocks = body.blocks if isinstance(body, config.Stack) else None
        sublayers += body.depth * steps if blocks is None else sum(len(b.sublayers) for b in blocks)
    rounding = ROUNDINGS.get(dtype, 16.0) * torch.finfo(dtype).eps
    return float(
        max(rounding, CODES * HALF_A_CODE if quantized else 0.0) * math.sqrt(sublayers + 1)
    )


def answers(actual: Sequence[Values], right: Sequence[Values]) -> list[str]:
    """The paths of what both ways say."""
    return [path for path in ANSWERS if path in actual[0] and path in right[0]]


def largest(
    actual: Sequence[Values], right: Sequence[Values], share: float
) -> tuple[float, float, str]:
    """The largest difference of an answer, its bound and its path: of the answer that is nearest to
    its bound.

    ``share`` is of the largest number of the answer; NaN counts as an infinite difference.
    """
    differences = []
    for path in answers(actual, right):
        size = 0.0
        difference = 0.0
        for first, second in zip(actual, right, strict=True):
            a = first[path].double()
            b = second[path].to(first[path].device).double()
            size = max(size, float(b.abs().max()))
            apart = float((a - b).abs().max()) if a.shape == b.shape else math.inf
            difference = max(difference, math.inf if math.isnan(apart) else apart)
        bound = share * size
        differences.append((difference / (bound or 1.0), difference, bound, path))
    return max(differences)[1:]


def equal_choices(
    actual: Sequence[Values], right: Sequence[Values], new: int, labels: bool
) -> tuple[int | None, int | None]:
    """Equal greedy choices and all of them; None where nothing is chosen.

    They are the likeliest token at each place, or after each of those before the last ``new`` of a
    text, which the plain pass chose itself: where all are the same, so is what would be generated,
    as each was made after the same tokens. ``labels``: what a Pool or a TokenHead says is chosen
    from too.
    """
    equal = count = 0
    for pair in zip(actual, right, strict=True):
        for path in ("logits", *(LABELS if labels else ())):
            values = [values[path] for values in pair if path in values]
            if len(values) == 2 and values[0].shape == values[1].shape:
                if new and path == "logits":
                    values = [logits[-new - 1 : -1] for logits in values]
                first, second = (logits.argmax(-1).cpu() for logits in values)
                equal = equal + int((first == second).sum())
                count = count + first.numel()
    return (equal, count) if count else (None, None)


def first_difference(
    actual: Sequence[Values], right: Sequence[Values], share: float, texts: Sequence[int]
) -> FirstDifference | None:
    """The first value that differs by more than ``share`` of the largest of its kind; None where
    none does.

    Values are compared by their paths, in the order of ``right``; ``texts`` numbers the two lists.
    """
    for path in right[0]:
        for a, b, text in zip(actual, right, texts, strict=True):
            difference = path in a and path in b and differing(path, a[path], b[path], share, text)
            if difference:
                return difference
    return None


def differing(
    path: str, value: Tensor | None, expected: Tensor, share: float = 0.0, text: int = 0
) -> FirstDifference | None:
    """The first number of ``value`` that is not the one expected, or not near enough."""
    if value is None or value.shape != expected.shape:
        problem = "missing" if value is None else f"of shape {tuple(value.shape)}"
        return FirstDifference(f"{path} ({problem})", None, None, text)
    if value.device == expected.device and torch.equal(value, expected):
        return None
    a = value.detach().double()
    b = expected.detach().to(value.device).double()
    size = b[b.isfinite()].abs().amax() if b.isfinite().any() else b.new_zeros(())
    near = (a == b) | ((a - b).abs() <= share * size) | (a.isnan() & b.isnan())
    if bool(near.all()):
        return None
    place = tuple((~near).nonzero()[0].tolist())
    numbers = (float(x[place]) for x in (a, b))
    value_or_none, expected_or_none = (x if math.isfinite(x) else None for x in numbers)
    address = f"{path}[{','.join(map(str, place))}]"
    return FirstDifference(address, value_or_none, expected_or_none, text)

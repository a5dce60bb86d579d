"""The kinds of operation: what each computes from its inputs, written out, and what one cell of it
is made of.

A closed set. ``compute`` takes whole values (or a head, or a few rows of them) and gives the
operation's result; ``cell`` gives one number's arithmetic: its terms, each a product of factors
that have addresses of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..plan import Op

Index = tuple[int, ...]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Line:
    """Cells side by side: ``values`` (n,) in float64 of the value ``id``, at ``index`` with None
    where they run."""

    id: str
    index: tuple[int | None, ...]
    values: Tensor
    start: int = 0

    def address(self, at: int = 0) -> str:
        """The address of the cell number ``at``."""
        places = (str(self.start + at if place is None else place) for place in self.index)
        return f"{self.id}[{','.join(places)}]" if self.index else self.id


@dataclass(frozen=True)
class Worked:
    """The arithmetic of a cell: the number that its operands give, terms (n,) and the factors of
    each term.

    A factor of one cell takes part in every term. ``other_lines`` are read too, but are no factor of a
    term.
    """

    value: float
    terms: Tensor
    factors: tuple[Line, ...]
    words: str
    equation: str
    other_lines: tuple[Line, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)  # on the way: mean, deviation, sum, ..


class Reader(Protocol):
    """Reads lines of an operation's inputs and weights, for ``Kind.cell``."""

    def input(self, number: int, *index: int | None) -> Line:
        """Cells of an input; None in ``index`` runs along that side."""

    def weight(self, role: str, *index: int | None) -> Line | None:
        """Cells of a weight, None where the operation has none of that role."""


KINDS: dict[str, Kind] = {}


class Kind(ABC):
    """One kind of operation; ``whole``: it mixes tokens, so that rows cannot be computed alone."""

    name: ClassVar[str]
    needs_whole_input: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        KINDS[cls.name] = cls()

    @abstractmethod
    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        """The result of the operation."""

    @abstractmethod
    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        """The arithmetic of one cell of the result."""


def scalar(line: Line) -> float:
    return float(line.values[0])


def products(
    factors: Sequence[Line], words: str, equation: str, bias: Line | None = None, scale: float = 1
) -> Worked:
    """A sum of products, and a bias that is a term of its own (its other factor is 1)."""
    terms = math.prod(
        [line.values for line in factors], start=torch.tensor(scale, dtype=torch.float64)
    )
    if bias is None:
        return Worked(float(terms.sum()), terms, tuple(factors), words, equation)
    value = float(terms.sum()) + scalar(bias)
    return Worked(
        value, terms, tuple(factors), words, f"{equation} + b", (bias,), {"bias": scalar(bias)}
    )


def copy_of(
    line: Line,
    words: str,
    equation: str,
    value: float | None = None,
    *other_lines: Line,
    **numbers: float,
) -> Worked:
    """One operand, and what is made of it."""
    value_of_line = scalar(line) if value is None else value
    return Worked(
        value_of_line,
        torch.tensor([value_of_line], dtype=torch.float64),
        (line,),
        words,
        equation,
        other_lines,
        numbers,
    )

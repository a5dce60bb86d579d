"""The arithmetic of one number, as a record that can be printed, sent and followed back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...core import files
from .kinds import Line


@dataclass(frozen=True)
class Operand:
    """A number that another is computed from, and where it stands."""

    address: str
    value: float


@dataclass(frozen=True)
class Explanation:
    """One number: what kind of operation gave it, from which operands, and what these give when it
    is done again.

    ``value`` is the number as the model has it (in ``dtype``), ``recomputed`` what its operands
    give in float64; ``terms`` (n,) add up to it where it is a sum. ``factors`` and ``others`` hold
    the operands, ``numbers`` what came out on the way (a mean, a sum of exponentials).
    """

    address: str
    kind: str
    value: float
    dtype: str
    recomputed: float
    terms: Tensor
    factors: tuple[Line, ...]
    others: tuple[Line, ...]
    numbers: dict[str, float]
    place: str
    sentence: str
    equation: str
    source: str
    weights: dict[str, str] = field(default_factory=dict)
    edited: bool = False

    @property
    def difference(self) -> float:
        """The value less what its operands give: rounding, or an edit's effect."""
        if self.value == self.recomputed:  # infinities too
            return 0.0
        return self.value - self.recomputed

    @property
    def operands(self) -> list[Operand]:
        """Every number that was read, with its address."""
        lines = (*self.factors, *self.others)
        return [
            Operand(line.address(at), float(line.values[at]))
            for line in lines
            for at in range(len(line.values))
        ]

    def term(self, at: int) -> tuple[float, list[Operand]]:
        """The term number ``at`` and its factors; a sum of single values has one operand a term."""
        if not self.factors:
            lines = [self.others[at]] if at < len(self.others) else []
            return float(self.terms[at]), [
                Operand(line.address(), float(line.values[0])) for line in lines
            ]
        chosen = [(line, 0 if len(line.values) == 1 else at) for line in self.factors]
        return float(self.terms[at]), [
            Operand(line.address(i), float(line.values[i])) for line, i in chosen
        ]

    def largest(self) -> str | None:
        """The address of the operand with the largest term, a value before a weight; None where
        none is left."""
        if not len(self.terms) and not self.others:
            return None
        # of a share the score itself, not its rivals
        if not len(self.terms) or self.kind == "softmax":
            return self.others[0].address()
        _, operands = self.term(int(self.terms.abs().argmax()))
        if not operands:
            return self.others[0].address() if self.others else None
        candidates = [
            operand
            for operand in operands
            if operand.address.partition("[")[0] not in self.weights.values()
        ]
        return (candidates or operands)[0].address

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """JSON form; of the terms at most the ``most`` largest, with how many there are."""
        order = self.order()[:most] if most is not None else list(range(len(self.terms)))
        terms = []
        for at in order:
            value, operands = self.term(at)
            terms.append(
                {
                    "term": at,
                    "value": files.json_number(value),
                    "operands": [_told(operand) for operand in operands],
                }
            )
        other_operands = [
            Operand(line.address(), float(line.values[0]))
            for line in self.others
            if len(line.values) == 1
        ]
        numbers = {name: files.json_number(value) for name, value in self.numbers.items()}
        record = {
            "address": self.address,
            "kind": self.kind,
            "value": files.json_number(self.value),
            "dtype": self.dtype,
        }
        return {
            **record,
            "recomputed": files.json_number(self.recomputed),
            "difference": files.json_number(self.difference),
            "sentence": self.sentence,
            "place": self.place,
            "equation": self.equation,
            "numbers": numbers,
            "count": len(self.terms),
            "terms": terms,
            "others": [_told(operand) for operand in other_operands],
            "source": self.source,
            "edited": self.edited,
        }

    def order(self) -> list[int]:
        """The terms by size, the largest first."""
        return self.terms.abs().argsort(descending=True).tolist()

    def lines(self, most: int = 8) -> list[str]:
        """Lines of text: the number, its operation, its largest terms, their sum."""
        text_lines = [f"{self.address} = {self.value:.9g}   ({self.kind}, {self.dtype})"]
        if self.place:
            text_lines.append(f"  {self.place}")
        text_lines.append(f"  {self.sentence}")
        text_lines.append(f"  {self.equation}" + (f"   {self.source}" if self.source else ""))
        order = self.order()[:most]
        running = 0.0
        for at in order:
            value, operands = self.term(at)
            running += value
            factors = " x ".join(f"{operand.address} {operand.value:.6g}" for operand in operands)
            text_lines.append(
                f"    {value:+.6g}  = {factors}"
                if len(operands) > 1 or self.kind == "softmax"
                else f"    {value:+.6g}  {factors}"
            )
        if len(self.terms) > len(order):
            remainder = float(self.terms.sum()) - running
            text_lines.append(f"    {remainder:+.6g}  {len(self.terms) - len(order)} smaller terms")
        for line in (
            self.others if self.factors or not len(self.terms) else self.others[len(self.terms) :]
        ):
            if len(line.values) == 1:
                text_lines.append(f"    with {line.address()} {float(line.values[0]):.6g}")
            else:
                text_lines.append(f"    with {len(line.values)} numbers from {line.address()} on")
        if self.kind not in ("leaf", "weight", "generic"):
            text_lines.append(
                f"  again from these, in float64: {self.recomputed:.9g}; difference "
                f"{self.difference:.3g}"
            )
        return text_lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _told(operand: Operand) -> dict[str, Any]:
    return {"address": operand.address, "value": files.json_number(operand.value)}

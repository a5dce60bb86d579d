"""One number opened: the operands that its operation read, and what each of them gives.

The recorded function runs again, in float64, on the part of its inputs that the number needs; the
gradient of that one number says which operands count, and where the function is linear in them,
gradient times operand are its terms. No function needs a rule of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...core.files import JsonObject
from .. import wording
from ..labels import json_number
from .operations import FAILURES, Operation, Value
from .rules import (
    CASTS,
    CREATED,
    POINTWISE,
    Index,
    Region,
    cell,
    full_region,
    need,
    origin,
    read,
    relative,
)

PAIRED = (
    "linear",
    "matmul",
    "bmm",
    "mm",
    "mv",
    "dot",
    "addmm",
    "baddbmm",
    "grouped_mm",
)  # sums of products of two rows
NORMS = ("layer_norm", "rms_norm")
SHOWN = 4096  # operands of a number that no gradient chooses
CLOSE = 1e-9  # of a number, within which float64 sums agree with it


@dataclass(frozen=True)
class Operand:
    """A number that another is computed from, and where it was computed."""

    address: str
    value: float

    def to_dict(self) -> JsonObject:
        return {"address": self.address, "value": json_number(self.value)}


@dataclass(frozen=True, eq=False)
class Operands:
    """Numbers of one value side by side: their ``places`` (n, dimensions), ``numbers`` (n,) and the
    gradient by each."""

    value: Value
    places: Tensor
    numbers: Tensor
    gradients: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: int) -> Operand:
        value, index = origin(self.value, tuple(self.places[at].tolist()))
        return Operand(address(value, index), self.numbers[at].item())

    @property
    def terms(self) -> Tensor:
        """The contribution of each where the function is linear in them."""
        return self.gradients * self.numbers


Groups: TypeAlias = tuple[Operands, ...]


@dataclass(frozen=True)
class Explanation:
    """One number: the function that gave it, its operands, and what these give when it is done
    again.

    ``value`` is the number as the model has it (in ``dtype``), ``recomputed`` what its operands
    give in float64. ``terms`` (n,) add up to it where it is a sum; each is a product of one number
    of each of the ``factors``. ``others`` are read too. ``numbers`` came out on the way.
    """

    address: str
    kind: str
    value: float
    dtype: str
    recomputed: float
    sentence: str
    equation: str = ""
    source: str = ""
    terms: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    factors: tuple[Operands, ...] = ()
    others: tuple[Operands, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)
    place: str = ""  # what its sides are: head 4, token 7 "it"

    @property
    def edited(self) -> bool:
        return self.kind == "edit"

    @property
    def difference(self) -> float:
        """The value less what its operands give: rounding."""
        if self.value == self.recomputed:  # infinities too
            return 0.0
        return self.value - self.recomputed

    @property
    def operands(self) -> list[Operand]:
        """Every number that was read, with its address."""
        return [group[at] for group in (*self.factors, *self.others) for at in range(len(group))]

    def _places(self, at: int) -> list[tuple[Operands, int]]:
        """The factors of the term number ``at``: a group, and the place in it."""
        if self.factors:
            return [(group, at if len(group) > 1 else 0) for group in self.factors]
        group, *later = self.others  # one number a term
        while at >= len(group):
            at -= len(group)
            group, *later = later
        return [(group, at)]

    def term(self, at: int) -> tuple[float, list[Operand]]:
        """The term number ``at`` and its factors."""
        return self.terms[at].item(), [group[place] for group, place in self._places(at)]

    def largest(self) -> str | None:
        """The address of the operand that counts most, a value before a weight; None where the
        arithmetic begins."""
        groups = (*self.factors, *self.others)
        if len(self.terms) and groups:
            places = self._places(int(self.terms.abs().argmax()))
        else:
            groups = tuple(sorted(groups, key=lambda x: -x.terms.abs().max().item()))
            places = [(group, int(group.terms.abs().argmax())) for group in groups]
        values = [(group, at) for group, at in places if group.value.kind != "weight"]
        return next((group[at].address for group, at in values or places), None)

    def _adds(self, group: Operands) -> bool:
        """True where the terms and this number, a bias, give the whole."""
        total = self.terms.sum().item() + group.terms.sum().item()
        is_factor = bool(self.factors) and bool(group.gradients.any())
        return is_factor and _close(total, self.recomputed)

    def order(self) -> list[int]:
        """The terms by size, the largest first."""
        return self.terms.abs().argsort(descending=True).tolist()

    def to_dict(self, most: int | None = None) -> JsonObject:
        """JSON form; of the terms at most the ``most`` largest, with how many there are."""
        order = self.order()[:most] if most is not None else list(range(len(self.terms)))
        terms = [(at, *self.term(at)) for at in order]
        number = json_number
        return {
            "address": self.address,
            "kind": self.kind,
            "value": number(self.value),
            "dtype": self.dtype,
            "recomputed": number(self.recomputed),
            "difference": number(self.difference),
            "sentence": self.sentence,
            "place": self.place,
            "equation": self.equation,
            "numbers": {name: number(x) for name, x in self.numbers.items()},
            "count": len(self.terms),
            "terms": [
                {"term": at, "value": number(value), "operands": [x.to_dict() for x in factors]}
                for at, value, factors in terms
            ],
            "others": [group[0].to_dict() for group in self.others if len(group) == 1],
            "source": self.source,
            "edited": self.edited,
        }

    def lines(self, most: int = 8) -> list[str]:
        """Lines of text: the number, its function, its largest terms, their sum."""
        rows = [f"{self.address} = {self.value:.9g}   ({self.kind}, {self.dtype})"]
        rows += [f"  {self.place}"] * bool(self.place)
        rows += [f"  {self.sentence}", f"  {self.equation}   {self.source}".rstrip()]
        order = self.order()
        order = order if len(order) == most + 1 else order[:most]
        for value, factors in map(self.term, order):
            product = " x ".join(f"{x.address} {x.value:.6g}" for x in factors)
            rows.append(f"    {value:+.6g}  = {product}")
        if smaller := len(self.terms) - len(order):
            remainder = self.terms.sum().item() - sum(self.terms[at].item() for at in order)
            rows.append(f"    {remainder:+.6g}  {smaller} smaller terms")
        for group in self.others if self.factors or not len(self.terms) else ():
            number = f"{group[0].address} {group[0].value:.6g}"
            if len(group) > 1:
                number = f"{len(group)} numbers from {group[0].address} on"
            adds = len(group) == 1 and self._adds(group)
            rows.append(
                f"    {group.terms.item():+.6g}  = {number}" if adds else f"    with {number}"
            )
        if self.factors or self.others:
            rows.append(
                f"  again from these, in float64: {self.recomputed:.9g}; difference "
                f"{self.difference:.3g}"
            )
        return [row for row in rows if row.strip()]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def address(value: Value, index: Index) -> str:
    """``model.layers.0.mlp.down_proj[0,3,7]``."""
    places = index[value.batch :]
    return f"{value.address}[{','.join(map(str, places))}]" if places else value.address


def explain(value: Value, index: Index) -> Explanation:
    """The arithmetic of one number of a value."""
    stored = read(value, cell(index)).reshape(())
    at, number = address(value, index), stored.item()
    dtype = str(value.dtype).removeprefix("torch.")
    start, (value, index) = value, origin(value, index, value)
    if value.is_named and value is not start:  # its number, by another name
        assert start.operation is not None
        places, one = torch.tensor([index]), torch.ones(1, dtype=torch.float64)
        same = Operands(value, places, stored.reshape(1).double(), one)
        name, source = start.operation.name, str(start.operation.line)
        text = "The same number in another place; nothing is computed."
        return Explanation(
            at, name, number, dtype, number, text, "y = x", source, same.terms, (same,)
        )
    operation = value.operation
    if operation is not None and operation.inputs and operation.name not in CREATED:
        return Opening(operation, value, index).explanation(at, number, dtype)
    if operation is None:
        return Explanation(at, value.kind, number, dtype, number, wording.LEAVES[value.kind])
    text = wording.LEAVES["created"].format(name=operation.name)
    return Explanation(at, "created", number, dtype, number, text, source=str(operation.line))


class Opening:
    """An operation run again for one number of its result."""

    def __init__(self, operation: Operation, value: Value, index: Index) -> None:
        self.operation, self.value, self.index = operation, value, index
        self.starts: list[Index] = []
        self.tensors: list[Tensor] = []
        self.gradients: list[Tensor | None] = []
        self.recomputed: float | None = None
        self.is_exact = True
        self.at: Index = ()
        if operation.name == "embedding":
            self._row()
        elif operation.name == "grouped_mm" and len(index) == 2:
            self._expert()
        else:
            self._call()

    def _read(self, regions: Sequence[Region]) -> None:
        """Reads parts of the inputs."""
        self.starts = [tuple(at.start for at in region) for region in regions]
        pairs = zip(self.operation.inputs, regions, strict=False)
        self.tensors = [read(x, region) for x, region in pairs]

    def _call(self) -> None:
        """The function itself, on the part of its inputs that the number needs."""
        needed = need(self.operation, self.value, cell(self.index))
        pairs = zip(self.operation.inputs, needed.inputs, strict=True)
        self._read([full_region(x.shape) if region is None else region for x, region in pairs])
        self.at = tuple(place.start for place in relative(cell(self.index), needed.output))
        self.gradients, self.recomputed = self._again()

    def _row(self) -> None:
        """A table is read at one row alone, which nothing changes."""
        ids = cell(self.index[:-1])
        row = int(read(self.operation.inputs[0], ids))
        self._read([ids, cell((row, self.index[-1]))])
        self.gradients = [None, torch.ones(1, 1, dtype=torch.float64)]
        self.recomputed = self.tensors[1].item()

    def _expert(self) -> None:
        """A product of rows with each one's matrix: the row and a column of its matrix."""
        row, column = map(slice, self.index, (at + 1 for at in self.index))
        expert = int((read(self.operation.argument(2, "offs")) <= row.start).sum())
        width = slice(0, self.operation.inputs[0].shape[1])
        self._read([(row, width), (slice(expert, expert + 1), width, column)])
        x, weights = (tensor.double() for tensor in self.tensors)
        self.gradients = [weights.view_as(x), x.view_as(weights)]
        self.recomputed = (x.reshape(-1) @ weights.reshape(-1)).item()

    def _again(self) -> tuple[list[Tensor | None], float | None]:
        """The gradients of the number by each input, None by one that has none, and the number as
        its operands give it; None where PyTorch cannot run the function again."""
        # some functions are not differentiable by all of their inputs, as by a running mean
        count = len(self.tensors)
        for exact, differentiable in (
            (True, count),
            (True, 1),
            (True, 0),
            (False, count),
            (False, 0),
        ):
            leaves = [
                x.detach()
                .to(torch.float64 if exact else x.dtype)
                .requires_grad_(at < differentiable)
                if x.is_floating_point()
                else x
                for at, x in enumerate(self.tensors)
            ]
            try:
                with torch.set_grad_enabled(differentiable > 0):
                    results = self.operation.run(leaves, exact)
                    number = results[self.value.output][self.at]
                    # where a number is a place, what stood there is what it comes from
                    slope = number if number.requires_grad else results[0][self.at]
                    gradients = self._slopes(slope, leaves)
            except FAILURES:
                continue
            self.is_exact = exact
            return gradients, number.item()
        return [None] * count, None

    @staticmethod
    def _slopes(number: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
        if not number.requires_grad:
            return [None] * len(leaves)
        real = torch.view_as_real(number).sum() if number.is_complex() else number
        inexact = [x for x in leaves if x.requires_grad]
        gradients = iter(torch.autograd.grad(real, inexact, allow_unused=True))
        return [next(gradients) if x.requires_grad else None for x in leaves]

    def _operands(self, at: int, everything: bool = False) -> Operands:
        """The numbers of an input that count; all of its region where none or ``everything``."""
        tensor, gradient = self.tensors[at], self.gradients[at]
        every = torch.ones_like(tensor, dtype=torch.bool)
        chosen = every if gradient is None or everything else gradient != 0
        places = chosen.nonzero()[:SHOWN] if gradient is None else chosen.nonzero()
        numbers = tensor[tuple(places.T)].reshape(-1)[: len(places)]  # of a scalar: one or none
        wide = numbers if numbers.is_complex() else numbers.double()
        slopes = torch.zeros_like(wide)
        if gradient is not None:
            slopes = gradient[tuple(places.T)].reshape(-1)[: len(places)].to(wide)
        start = torch.tensor(self.starts[at], dtype=torch.long, device=places.device)
        return Operands(self.operation.inputs[at], places + start, wide.detach(), slopes)

    def explanation(self, address: str, number: Any, dtype: str) -> Explanation:
        """The record of the number, which stands at ``address``."""
        name = self.operation.name
        terms, factors, others = self._arithmetic()
        others = tuple(x for x in others if len(x))
        numbers = self._numbers(name)
        facts: dict[str, Any] = {**numbers, "terms": len(terms)}
        if name == "embedding":
            facts |= {"row": self.starts[1][0], "table": self.operation.inputs[1].address}
        count = sum(map(len, (*factors, *others)))
        plain = f"The function {name} of {count} number{'s' * (count != 1)}."
        text = wording.SENTENCES.get(name, plain).format(**facts, count=count)
        if name == "softmax" and number == 0 and numbers["exp"] == 0:
            text += " The mask hides this key."
        constants = [float(x) for x in self.operation.leaves if type(x) in (int, float)]
        if name in POINTWISE and constants:
            text += f" The code's own number is {' and '.join(f'{x:.6g}' for x in constants)}."
        if self.operation.is_written_out:
            text += " PyTorch computes this attention in one step; here it is written out."
        if name == "edit":
            before = read(self.operation.inputs[0], cell(self.index)).item()
            text += f" It was {before:.6g}; the edit adds {number - before:+.6g}."
        is_exact = self.is_exact and self.recomputed is not None
        if self.value.dtype.is_floating_point and not is_exact:
            text += " PyTorch cannot run this function in float64."
        return Explanation(
            address=address,
            kind=name,
            value=number,
            dtype=dtype,
            recomputed=number if self.recomputed is None else self.recomputed,
            sentence=text,
            equation=wording.EQUATIONS.get(name, f"{name}(..)"),
            source=str(self.operation.line),
            terms=terms,
            factors=factors,
            others=others,
            numbers=numbers,
        )

    def _arithmetic(self) -> tuple[Tensor, Groups, Groups]:
        """Terms, their factors, and what else was read."""
        name, number = self.operation.name, self.recomputed
        none, every = torch.zeros(0, dtype=torch.float64), range(len(self.tensors))
        if name in PAIRED and number is not None:
            pair = (1, 2) if name in ("addmm", "baddbmm") else (0, 1)
            first, second = (self._operands(at, everything=True) for at in pair)
            if len(first) == len(second):
                bias = tuple(self._operands(at) for at in every if at not in pair)
                return first.terms, (first, second), bias
        if name in POINTWISE | CASTS:
            cells = tuple(self._operands(at, everything=True) for at in every)
            is_sum = name in ("add", "sub", "rsub") and len(cells) > 1
            if is_sum and all(x.gradients.all() for x in cells):
                return torch.cat([x.terms for x in cells]), (), cells
            inexact, exact = self._split(cells)
            if inexact and number is not None and math.isfinite(abs(number)):
                return torch.tensor([number]), inexact, exact
            return none, (), cells
        if name == "softmax":
            row = self._operands(0, everything=True)
            return (row.numbers - row.numbers.max()).softmax(-1), (row,), ()
        groups = tuple(map(self._operands, every))
        if name in NORMS and number is not None:  # its own number, at the row's scale
            x, place = self.operation.inputs[0], torch.tensor([self.index])
            center = read(x, cell(self.index)).reshape(1).double()
            itself = Operands(x, place, center, torch.ones_like(center))
            added = sum(group.terms.sum().item() for group in groups[2:])
            return torch.tensor([number - added]), (itself,), (*groups[1:], groups[0])
        if not any(map(len, groups)):  # no number of them moves the result
            return none, (), tuple(self._operands(at, everything=True) for at in every)
        inexact, exact = self._split(groups)
        inexact = tuple(group for group in inexact if len(group))
        # a convolution is linear in its input, some sums in the first and what is added to it
        pairs = [(*inexact[:1], x) for x in inexact[1:]]
        for linear in (inexact[:1], *pairs, inexact) if inexact else ():
            total = sum(group.terms.sum().item() for group in linear)
            if number is None or not _close(total, number):
                continue
            constant = [group for group in inexact if group not in linear]
            factors = [group for group in constant if _are_factors(linear[0], group)][:1]
            if factors or len(linear) == 1:
                factors = [linear[0], *factors]
                others = (group for group in inexact if group not in factors)
                return linear[0].terms, tuple(factors), (*others, *exact)
            terms = torch.cat([group.terms for group in linear])
            return terms, (), (*linear, *constant, *exact)
        return none, (), (*inexact, *(x for x in exact if not inexact or len(x) == 1))

    def _split(self, groups: Groups) -> tuple[Groups, Groups]:
        """Numbers that have gradients, and others."""
        has_slope = dict(zip(groups, (slope is not None for slope in self.gradients), strict=True))
        return (
            tuple(group for group in groups if has_slope[group]),
            tuple(group for group in groups if not has_slope[group]),
        )

    def _numbers(self, name: str) -> dict[str, float]:
        """Numbers on the way: a mean, a sum of exponentials."""
        if self.recomputed is None or not self.tensors:
            return {}
        x = self.tensors[0]
        if name == "softmax":
            x = x.double().reshape(-1)
            top = x.max()
            exp = (x[max(self.at)] - top).exp().item()
            return {"max": top.item(), "exp": exp, "sum": (x - top).exp().sum().item()}
        if name == "layer_norm":
            row = x.double()
            return {"mean": row.mean().item(), "deviation": row.std(correction=0).item()}
        if name == "rms_norm":
            return {"root mean square": x.double().square().mean().sqrt().item()}
        return {}


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * (abs(a) + abs(b))


def _are_factors(first: Operands, second: Operands) -> bool:
    """True where each number of one group is what another of the other group is multiplied with."""
    return (
        len(first) == len(second)
        and bool((first.gradients == second.numbers).all())
        and bool((second.gradients == first.numbers).all())
    )

"""One number opened: the operands that its operation read, and what each of them gives.

The recorded function runs again, in float64, on the part of its inputs that the number needs; the
gradient of that one number says which operands count, and where the function is linear in them,
gradient times operand are its terms. No function needs a rule of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...core import files
from . import words
from .operations import FAILURES, Operation, Value
from .rules import CASTS, CREATED, POINTWISE, Index, cell, full_region, need, origin, read, relative

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

    def to_dict(self) -> dict[str, Any]:
        return {"address": self.address, "value": files.json_number(self.value)}


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
    weights: dict[str, str] = field(default_factory=dict)  # role -> address

    @property
    def edited(self) -> bool:
        return self.kind == "edit"

    @property
    def difference(self) -> float:
        """The value less what its operands give: rounding, or an edit's effect."""
        if self.value == self.recomputed:  # infinities too
            return 0.0
        return self.value - self.recomputed

    @property
    def operands(self) -> list[Operand]:
        """Every number that was read, with its address."""
        return [group[at] for group in (*self.factors, *self.others) for at in range(len(group))]

    def term(self, at: int) -> tuple[float, list[Operand]]:
        """The term number ``at`` and its factors."""
        if self.factors:
            factors = [group[at if len(group) > 1 else 0] for group in self.factors]
        else:  # one number a term
            counts = [len(group) for group in self.others]
            group = next(i for i in range(len(counts)) if sum(counts[: i + 1]) > at)
            factors = [self.others[group][at - sum(counts[:group])]]
        return self.terms[at].item(), factors

    def largest(self) -> str | None:
        """The address of the operand that counts most, a value before a weight; None where the
        arithmetic begins."""
        groups = (*self.factors, *self.others)
        if not groups:
            return None
        if len(self.terms):
            _, factors = self.term(int(self.terms.abs().argmax()))
            values = [x for x in factors if x.address.partition("[")[0] not in self._weights()]
            return (values or factors)[0].address
        group = max(groups, key=lambda x: (x.value.kind != "weight", x.terms.abs().max().item()))
        return group[int(group.terms.abs().argmax())].address

    def _weights(self) -> set[str]:
        groups = (*self.factors, *self.others)
        return {group.value.address for group in groups if group.value.kind == "weight"}

    def _adds(self, group: Operands) -> bool:
        """True where the terms and this number, a bias, give the whole."""
        total = self.terms.sum().item() + group.terms.sum().item()
        is_factor = bool(self.factors) and bool(group.gradients.any())
        return is_factor and _close(total, self.recomputed)

    def order(self) -> list[int]:
        """The terms by size, the largest first."""
        return self.terms.abs().argsort(descending=True).tolist()

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """JSON form; of the terms at most the ``most`` largest, with how many there are."""
        order = self.order()[:most] if most is not None else list(range(len(self.terms)))
        terms = [(at, *self.term(at)) for at in order]
        number = files.json_number
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
        order, running = self.order(), 0.0
        order = order if len(order) == most + 1 else order[:most]
        for at in order:
            value, factors = self.term(at)
            running += value
            product = " x ".join(f"{x.address} {x.value:.6g}" for x in factors)
            rows.append(f"    {value:+.6g}  = {product}")
        if len(self.terms) > len(order):
            remainder = self.terms.sum().item() - running
            rows.append(f"    {remainder:+.6g}  {len(self.terms) - len(order)} smaller terms")
        for group in self.others if self.factors or not len(self.terms) else ():
            first = group[0]
            many = f"{len(group)} numbers from {first.address} on"
            number = f"{first.address} {first.value:.6g}"
            if len(group) == 1 and self._adds(group):
                rows.append(f"    {group.terms.item():+.6g}  = {number}")
            else:
                rows.append(f"    with {number if len(group) == 1 else many}")
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
    if operation is None or not operation.inputs or operation.name in CREATED:
        kind = value.kind if operation is None else "created"
        name = "" if operation is None else operation.name
        source = "" if operation is None else str(operation.line)
        text = words.LEAVES[kind].format(name=name)
        return Explanation(at, kind, number, dtype, number, text, source=source)
    return Opening(operation, value, index).explanation(at, number, dtype)


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

    def _call(self) -> None:
        """The function itself, on the part of its inputs that the number needs."""
        inputs = self.operation.inputs
        needed = need(self.operation, self.value, cell(self.index))
        regions = [
            full_region(x.shape) if region is None else region
            for x, region in zip(inputs, needed.inputs, strict=True)
        ]
        self.starts = [tuple(at.start for at in region) for region in regions]
        self.tensors = [read(x, region) for x, region in zip(inputs, regions, strict=True)]
        self.at = tuple(place.start for place in relative(cell(self.index), needed.output))
        self.gradients, self.recomputed = self._again()

    def _row(self) -> None:
        """A table is read at one row alone, which nothing changes."""
        ids, table = self.operation.inputs
        row = int(read(ids, cell(self.index[:-1])))
        place = (row, self.index[-1])
        self.starts = [self.index[:-1], place]
        self.tensors = [read(ids, cell(self.index[:-1])), read(table, cell(place))]
        self.gradients = [None, torch.ones(1, 1, dtype=torch.float64)]
        self.recomputed = self.tensors[1].item()

    def _expert(self) -> None:
        """A product of rows with each one's matrix: the row and a column of its matrix."""
        x, table = self.operation.inputs[:2]
        offsets = self.operation.argument(2, "offs")
        row, column = self.index
        expert = int((read(offsets) <= row).sum())
        self.starts = [(row, 0), (expert, 0, column)]
        self.tensors = [
            read(x, (slice(row, row + 1), slice(0, x.shape[1]))),
            read(table, (*cell((expert,)), slice(0, table.shape[1]), *cell((column,)))),
        ]
        factors = [tensor.double() for tensor in self.tensors]
        self.gradients = [factors[1].reshape(1, -1), factors[0].reshape(1, -1, 1)]
        self.recomputed = (factors[0].reshape(-1) @ factors[1].reshape(-1)).item()

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
            differentiate = differentiable > 0
            leaves = [
                x.detach()
                .to(torch.float64 if exact else x.dtype)
                .requires_grad_(at < differentiable)
                if x.is_floating_point()
                else x
                for at, x in enumerate(self.tensors)
            ]
            try:
                with torch.set_grad_enabled(differentiate):
                    results = self.operation.run(leaves, exact)
                    number = results[self.value.output][self.at]
                    # where a number is a place, what stood there is what it comes from
                    slope = number if number.requires_grad else results[0][self.at]
                    gradients = self._slopes(slope, leaves)
            except FAILURES:
                continue
            self.is_exact = exact
            return gradients, number.item()
        return [None] * len(self.tensors), None

    @staticmethod
    def _slopes(number: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
        inexact = [x for x in leaves if x.requires_grad]
        if not number.requires_grad:
            return [None] * len(leaves)
        real = torch.view_as_real(number).sum() if number.is_complex() else number
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
        text = words.sentence(name, sum(map(len, (*factors, *others))), facts)
        if name == "softmax" and number == 0 and numbers["exp"] == 0:
            text += " The mask hides this key."
        if name in POINTWISE and (constants := self._constants()):
            text += f" The code's own number is {' and '.join(f'{x:.6g}' for x in constants)}."
        if self.operation.is_written_out:
            text += " PyTorch computes this attention in one step; here it is written out."
        if self.value.dtype.is_floating_point and not (
            self.is_exact and self.recomputed is not None
        ):
            text += " PyTorch cannot run this function in float64."
        return Explanation(
            address=address,
            kind=name,
            value=number,
            dtype=dtype,
            recomputed=number if self.recomputed is None else self.recomputed,
            sentence=text,
            equation=words.equation(name),
            source=str(self.operation.line),
            terms=terms,
            factors=factors,
            others=others,
            numbers=numbers,
        )

    def _arithmetic(self) -> tuple[Tensor, tuple[Operands, ...], tuple[Operands, ...]]:
        """Terms, their factors, and what else was read."""
        name, count = self.operation.name, len(self.tensors)
        none = torch.zeros(0, dtype=torch.float64)
        if name in PAIRED and self.recomputed is not None:
            first = 1 if name in ("addmm", "baddbmm") else 0
            rows = [self._operands(at, everything=True) for at in (first, first + 1)]
            bias = tuple(self._operands(at) for at in range(count) if at not in (first, first + 1))
            if len(rows[0]) == len(rows[1]):
                return rows[0].terms, tuple(rows), tuple(x for x in bias if len(x))
        if name in POINTWISE | CASTS:
            cells = tuple(self._operands(at, everything=True) for at in range(count))
            if (
                name in ("add", "sub", "rsub")
                and len(cells) > 1
                and all(x.gradients.all() for x in cells)
            ):
                return torch.cat([x.terms for x in cells]), (), cells
            single = self.recomputed is not None and math.isfinite(abs(self.recomputed))
            inexact = [
                x for x, slope in zip(cells, self.gradients, strict=True) if slope is not None
            ]
            exact = tuple(
                x for x, slope in zip(cells, self.gradients, strict=True) if slope is None
            )
            if single and inexact:
                return torch.tensor([self.recomputed]), tuple(inexact), exact
            return none, (), cells
        groups = [self._operands(at) for at in range(count)]
        if name == "softmax":
            row = self._operands(0, everything=True)
            return (row.numbers - row.numbers.max()).softmax(-1), (row,), ()
        if name in NORMS and self.recomputed is not None:  # its own number, at the row's scale
            place = torch.tensor([self.index])
            number = read(self.operation.inputs[0], cell(self.index)).reshape(1).double()
            itself = Operands(self.operation.inputs[0], place, number, torch.ones_like(number))
            shifts = [group for group in groups[2:] if len(group)]
            added = sum(group.terms.sum().item() for group in shifts)
            return torch.tensor([self.recomputed - added]), (itself,), (*groups[1:], groups[0])
        if not any(map(len, groups)):  # no number of them moves the result
            return none, (), tuple(self._operands(at, everything=True) for at in range(count))
        inexact = [g for g, slope in zip(groups, self.gradients, strict=True) if slope is not None]
        inexact = [group for group in inexact if len(group)]
        exact = tuple(g for g, slope in zip(groups, self.gradients, strict=True) if slope is None)
        for linear in _subsets(inexact):
            total = sum(group.terms.sum().item() for group in linear)
            if self.recomputed is not None and _close(total, self.recomputed):
                constant = tuple(group for group in inexact if group not in linear)
                pair = next((group for group in constant if _are_factors(linear[0], group)), None)
                if pair is not None:
                    constant = tuple(group for group in inexact if group not in (linear[0], pair))
                    return linear[0].terms, (linear[0], pair), (*constant, *exact)
                if len(linear) == 1:
                    return linear[0].terms, (linear[0],), (*constant, *exact)
                return (
                    torch.cat([group.terms for group in linear]),
                    (),
                    (*linear, *constant, *exact),
                )
        return none, (), (*inexact, *(x for x in exact if not inexact or len(x) == 1))

    def _constants(self) -> list[float]:
        """The numbers that the line of code itself gives the function."""
        return [float(x) for x in self.operation.leaves if type(x) in (int, float)]

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


def _subsets(groups: list[Operands]) -> list[list[Operands]]:
    """The groups that a number may be linear in: the first, as a convolution in its input; the
    first with what is added to it; all."""
    if not groups:
        return []
    return [groups[:1], *([groups[0], other] for other in groups[1:]), groups]


def _are_factors(first: Operands, second: Operands) -> bool:
    """True where each number of one group is what another of the other group is multiplied with."""
    return (
        len(first) == len(second)
        and bool((first.gradients == second.numbers).all())
        and bool((second.gradients == first.numbers).all())
    )

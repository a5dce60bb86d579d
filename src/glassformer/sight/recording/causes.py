"""What a number of a recorded pass is the sum of: its gradient carried back, times the values on the way.

    attribute       a number, split over chosen values and what else it begins with
    edges           a reader's number or direction, split over its writers
    compare_patches the gradient's guess at a patch, beside the patch itself
    patch_path      a patch that acts by one way alone: writer -> reader

The carrying is done by the recorded operations, made linear (linearised.py): no second model.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.errors import need
from ..figures.charts import Chart, Prose, TableFigure
from ..figures.shown import Records, Shown
from .linearised import Linearised, Rank, inner, numbers, wide
from .recorder import Value
from .rules import read

if TYPE_CHECKING:
    from .module_trace import ModuleTrace

Place = tuple[int | slice, ...]
HOW = {
    "value": "Fixed at the value that it had",
    "gate": "Fixed at its gate, act(x) / x",
    "scale": "Fixed at its own scale",
    "half": "Of a product of two values that both depend on the input, half is each one's",
}


@dataclass(frozen=True)
class Cause:
    """What one value adds to a number. ``kind`` is chosen, or why nothing is carried on from it:
    embedding, weight, input, constant, fixed, edit, number."""

    address: str
    kind: str
    value: float


@dataclass(frozen=True, repr=False)
class Causes(Shown):
    """The causes of a number, in the order of the pass; ``sum`` is theirs, ``value`` the model's
    own, and the ``difference`` rounding.

    ``gradients`` are those by the chosen values, by address; ``notes`` say what is fixed.
    """

    target: str
    causes: list[Cause]
    sum: float
    value: float
    notes: list[str]
    gradients: dict[str, Tensor]

    @property
    def difference(self) -> float:
        return abs(self.sum - self.value)

    @property
    def title(self) -> str:
        return f"Causes of {self.target}"

    def __getitem__(self, address: str) -> float:
        """The sum of what has this address, or begins with it: 0 where the number owes it
        nothing."""
        start = (f"{address}[", f"{address}.")
        chosen = (x for x in self.causes if x.address == address or x.address.startswith(start))
        return math.fsum(cause.value for cause in chosen)

    def charts(self) -> Iterator[Chart]:
        """The causes that add or take most, the sum beside the model's own number, and what is
        fixed."""
        yield self._table()
        yield Prose(self.notes)

    def records(self) -> Records:
        """A row for each cause."""
        rows = ((cause.address, cause.kind, cause.value) for cause in self.causes)
        return ("address", "kind", "value"), rows

    def _table(self, most: int = 20) -> TableFigure:
        ordered = sorted(self.causes, key=lambda cause: -abs(cause.value))
        rows = [(cause.address, cause.kind, cause.value) for cause in ordered[:most]]
        if smaller := [cause.value for cause in ordered[most:]]:
            rows.append((f"{len(smaller):,} more", "", math.fsum(smaller)))
        totals = [
            ("sum", "", self.sum),
            (self.target, "the model's own", self.value),
            ("difference", "", f"{self.difference:.1e}"),
        ]
        return TableFigure.of("", ("address", "kind", "adds"), [*rows, *totals], (0, 1), "+.4f")

    def to_dict(self) -> dict[str, Any]:
        causes = [vars(cause) for cause in self.causes]
        plain = {name: x for name, x in vars(self).items() if name != "gradients"}
        return {**plain, "causes": causes, "difference": self.difference}

    def __str__(self) -> str:
        return "\n".join([*self.table(), *self.notes])


# ------------------------------------------------------------------------------------- addresses


def choose(trace: ModuleTrace, patterns: str | Sequence[str]) -> list[str]:
    """The addresses that patterns name.

    ``*`` stands for a piece of a name without a dot, ``**`` for any; a word in the place of a number
    for each number: ``blocks.*.attn.z[0,head,5]`` are all heads of all blocks, one by one.
    """
    addresses: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        name, bracket, inside = pattern.strip().partition("[")
        names = [name]
        if "*" in name:
            parts = map(re.escape, name.split("**"))
            form = re.compile(".*".join(part.replace(r"\*", "[^.]*") for part in parts))
            names = [x for x in (*trace.values, *trace.aliases) if form.fullmatch(x)]
            names = list({trace.value(x): x for x in reversed(names)}.values())[::-1]
            need(bool(names), f'No address is like "{name}"; trace.lines() lists them all.')
        pieces = [piece.strip() for piece in inside.rstrip(" ]").split(",") if bracket]
        for each in names:
            sizes = (*trace.value(each).shape, *(0 for _ in pieces))
            choices = [
                [str(at) for at in range(size)] if piece.isidentifier() else [piece]
                for piece, size in zip(pieces, sizes, strict=False)
            ]
            for place in itertools.product(*choices):
                addresses[f"{each}[{','.join(place)}]" if place else each] = None
    return list(addresses)


def _number(trace: ModuleTrace, address: str) -> tuple[Value, Place]:
    value, place = trace.parse(address)
    single = len(place) == len(value.shape) and not any(isinstance(at, slice) for at in place)
    zeros = ",".join("0" for _ in value.shape)
    need(single, f"{address} is not one number; give one, as {value.address}[{zeros}].")
    return value, place


# -------------------------------------------------------------------------------- carrying it back


class _Carried:
    """Gradients carried back from a number, and the causes met on the way."""

    def __init__(self, trace: ModuleTrace, chosen: Sequence[str], ordinary: bool = False) -> None:
        self.pass_ = Linearised(trace.operations, ordinary)
        self.operations = trace.operations
        self.gradients: dict[Value, Tensor] = {}
        self.chosen: dict[Value, list[tuple[str, Place]]] = {}
        self.slopes: dict[str, Tensor] = {}
        self.causes: list[Cause] = []
        for address in chosen:
            value, place = trace.parse(address)
            self.chosen.setdefault(value, []).append((address, place))

    def seed(self, value: Value, place: Place, direction: Tensor) -> None:
        gradient = torch.zeros(value.shape, dtype=torch.float64)
        gradient[place] = wide(direction)
        self._add(value, gradient)

    def _add(self, value: Value, gradient: Tensor) -> None:
        known = self.gradients.get(value)
        self.gradients[value] = gradient if known is None else known + gradient

    def run(self) -> None:
        for operation in reversed(self.operations):
            gradients: dict[int, Tensor] = {}
            for number, value in enumerate(operation.outputs):
                if value in self.gradients:
                    gradient = self._stop(value, self.gradients.pop(value))
                    if gradient.any():
                        gradients[number] = gradient
            if gradients and self.pass_.carries(operation):
                moved, number_ = self.pass_.back(operation, gradients)
                for value, gradient in moved:
                    self._add(value, gradient)
                if number_:
                    kind = "edit" if operation.name == "edit" else "number"
                    self.causes.append(Cause(operation.outputs[0].address, kind, number_))
            else:
                for number, gradient in gradients.items():
                    self._leaf(operation.outputs[number], gradient)
        for value, gradient in self.gradients.items():
            gradient = self._stop(value, gradient)
            if gradient.any():
                self._leaf(value, gradient)
        self.causes.reverse()

    def _stop(self, value: Value, gradient: Tensor) -> Tensor:
        """The gradient without what belongs to chosen places; an ordinary one goes on through
        them."""
        for address, place in self.chosen.get(value, ()):
            slope = gradient[place].clone()
            self.slopes[address] = slope
            if slope.any() and not self.pass_.ordinary:
                self.causes.append(Cause(address, "chosen", inner(slope, numbers(value)[place])))
                gradient = gradient.clone()
                gradient[place] = 0.0
        return gradient

    def _leaf(self, value: Value, gradient: Tensor) -> None:
        kind = value.kind
        if value.operation is not None:
            status = self.pass_.status(value)
            kind = "fixed" if status.rank == Rank.FIXED else "constant"
            kind = "embedding" if value.operation.name == "embedding" else kind
        if adds := inner(gradient, numbers(value)):
            self.causes.append(Cause(value.address, kind, adds))

    def notes(self) -> Iterator[str]:
        for how, sentence in HOW.items():
            counts = {f: n for (kind, f), n in self.pass_.fixed.items() if kind == how}
            if counts:
                yield f"{sentence}: {', '.join(f'{f} ({n})' for f, n in counts.items())}."
        for address in self.chosen.values():
            names = [name for name, _ in address if name not in self.slopes]
            if names:
                yield f"Nothing of it comes through {names[0]}."


def attribute(
    trace: ModuleTrace, target: str, to: str | Sequence[str] = (), against: str | None = None
) -> Causes:
    """``ModuleTrace.attribute``."""
    carried = _Carried(trace, choose(trace, to))
    number = 0.0
    for sign, address in ((1.0, target), (-1.0, against)):
        if address is not None:
            value, place = _number(trace, address)
            carried.seed(value, place, torch.tensor(sign))
            number += sign * float(read(value)[place])
    carried.run()
    return _causes(carried, target if against is None else f"{target} - {against}", number)


def edges(
    trace: ModuleTrace,
    reader: str,
    writers: str | Sequence[str],
    direction: Tensor | None = None,
) -> Causes:
    """``ModuleTrace.edges``."""
    value, place = _number(trace, reader) if direction is None else trace.parse(reader)
    read_numbers = numbers(value)[place]
    direction = torch.ones(()) if direction is None else direction
    need(
        direction.shape == read_numbers.shape,
        f"{reader} is {tuple(read_numbers.shape)}; the direction is {tuple(direction.shape)}.",
    )
    carried = _Carried(trace, choose(trace, writers))
    carried.chosen.pop(value, None)
    carried.seed(value, place, direction)
    carried.run()
    return _causes(carried, reader, inner(wide(direction), read_numbers))


def _causes(carried: _Carried, target: str, number: float) -> Causes:
    total = math.fsum(cause.value for cause in carried.causes)
    return Causes(target, carried.causes, total, number, [*carried.notes()], carried.slopes)


# ---------------------------------------------------------------------------------------- patches


@dataclass(frozen=True)
class Patch:
    """A value of another pass put in the place of this one's: what the gradient expects it to add
    to the number, and what it adds."""

    address: str
    expected: float
    exact: float


@dataclass(frozen=True, repr=False)
class Patches(Shown):
    """Patches one by one, beside the gradient's guess at each; ``correlation`` is that of their
    ranks."""

    target: str
    value: float
    other: float
    patches: list[Patch]
    correlation: float

    @property
    def title(self) -> str:
        return f"Patches: {self.target}, {self.value:+.4f} here and {self.other:+.4f} there"

    def charts(self) -> Iterator[Chart]:
        """The patches that change most, then how well the gradient puts them in order."""
        yield self._table()
        yield Prose([self._sentence()])

    def records(self) -> Records:
        """A row for each patch."""
        rows = ((patch.address, patch.expected, patch.exact) for patch in self.patches)
        return ("address", "expected", "exact"), rows

    def _table(self, most: int = 20) -> TableFigure:
        ordered = sorted(self.records()[1], key=lambda row: -abs(row[2]))
        return TableFigure.of("", ("patched", "gradient", "exact"), ordered[:most], form="+.4f")

    def _sentence(self) -> str:
        return f"Correlation of their ranks: {self.correlation:.3f} of {len(self.patches)} patches."

    def __str__(self) -> str:
        return "\n".join([self.title, *self.table(), self._sentence()])


def compare_patches(
    trace: ModuleTrace,
    other: ModuleTrace,
    target: str,
    to: str | Sequence[str],
    against: str | None = None,
) -> Patches:
    """``ModuleTrace.compare_patches``."""

    def number(run: ModuleTrace) -> float:
        return float(run[target]) - (0.0 if against is None else float(run[against]))

    addresses = choose(trace, to)
    carried = _Carried(trace, addresses, ordinary=True)
    for sign, address in ((1.0, target), (-1.0, against)):
        if address is not None:
            carried.seed(*_number(trace, address), torch.tensor(sign))
    carried.run()
    before, patches = number(trace), []
    for address in addresses:
        change = wide(_other(trace, other, address)) - wide(trace[address])
        slope = carried.slopes.get(address)
        exact = number(trace.edit({address: _put(other[address])})) - before
        patches.append(Patch(address, 0.0 if slope is None else inner(slope, change), exact))
    return Patches(
        target if against is None else f"{target} - {against}",
        before,
        number(other),
        patches,
        _rank_correlation(patches),
    )


def _rank_correlation(patches: Sequence[Patch]) -> float:
    table = torch.tensor([(patch.expected, patch.exact) for patch in patches], dtype=torch.float64)
    ranks = table.argsort(0).argsort(0).double()
    return float(torch.corrcoef(ranks.T)[0, 1]) if len(patches) > 1 else math.nan


def patch_path(
    trace: ModuleTrace,
    other: ModuleTrace,
    writer: str,
    reader: str,
    target: str,
    still: str | Sequence[str] = (),
) -> float:
    """``ModuleTrace.patch_path``."""
    between = [address for address in choose(trace, still) if address not in (writer, reader)]
    edits = {address: _put(trace[address]) for address in between}
    middle = trace.edit({**edits, writer: _put(_other(trace, other, writer))})
    return float(trace.edit({reader: _put(middle[reader])})[target]) - float(trace[target])


def _other(trace: ModuleTrace, other: ModuleTrace, address: str) -> Tensor:
    here, there = trace[address], other[address]
    need(
        here.shape == there.shape,
        f"{address} is {tuple(here.shape)} here and {tuple(there.shape)} there; give two inputs of "
        "the same shape.",
    )
    return there


def _put(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: value

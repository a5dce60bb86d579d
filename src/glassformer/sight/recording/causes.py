"""The causes of a number in a pass: its gradient carried back, times the values on the way.

    trace.attribute        a number, split over chosen values and what else it begins with
    trace.edges            a reader's number or direction, split over its writers
    trace.compare_patches  what the gradient expects of a patch, beside the patch itself
    trace.patch_path       a patch that acts between two values alone: writer -> reader

The carrying is done by the recorded operations, made linear (linearised.py): no second model.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import need
from ...core.files import JsonObject
from ..figures.charts import Chart, Prose, TableFigure
from ..figures.shown import Records, Shown
from .linearised import Linearised, Rank, inner, numbers, wide
from .operations import Edit, Operation, Slices, Value
from .rules import origin

Index = tuple[int | slice | Tensor, ...]
SHOWN = 1 << 16  # numbers of a view that are looked for where they were computed
REASONS = {
    "value": "Fixed at the value that it had",
    "gate": "Fixed at its gate, act(x) / x",
    "scale": "Fixed at its own scale",
    "half": "Of a product of two values that both depend on the input, half is each one's",
}


@dataclass(frozen=True)
class Cause:
    """The share of one value in a number.

    ``kind`` is chosen; or why the number is carried no further: embedding, weight, input, constant,
    fixed, edit; number for those of the code itself, as the 1 in x + 1.
    """

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
        return TableFigure.of_sum(
            ("address", "kind", "adds"),
            self.records()[1],
            most,
            ("sum", "", self.sum),
            (self.target, "the model's own", self.value),
            ("difference", "", f"{self.difference:.1e}"),
        )

    def to_dict(self) -> JsonObject:
        causes = [vars(cause) for cause in self.causes]
        plain = {name: x for name, x in vars(self).items() if name != "gradients"}
        return {**plain, "causes": causes, "difference": self.difference}

    def __str__(self) -> str:
        return "\n".join([*self.table(), *self.notes])


# -------------------------------------------------------------------------------- carrying it back


class _Carried:
    """Gradients carried back from a number, and the causes met on the way."""

    def __init__(self, trace: Caused, chosen: Sequence[str], ordinary: bool = False) -> None:
        self.linearised = copy.copy(trace.linearised[ordinary])
        self.linearised.fixed = Counter()
        self.operations, self.view_sources = trace.operations, trace.view_sources
        self.gradients: dict[Value, Tensor] = {}
        self.chosen: dict[Value, list[tuple[str, Index]]] = {}
        self.slopes: dict[str, Tensor] = {}
        self.causes: list[Cause] = []
        for address in chosen:
            value, place = trace.parse(address)
            self.chosen.setdefault(value, []).append((address, place))

    def begin(self, trace: Caused, target: str, against: str | None) -> float:
        """Begins with a number, or the difference of two, and gives it."""
        number = 0.0
        for sign, address in ((1.0, target), (-1.0, against)):
            if address is not None:
                value, place = trace._number(address)
                self.seed(value, place, torch.tensor(sign))
                number += sign * float(numbers(value)[place])
        return number

    def seed(self, value: Value, place: Index, direction: Tensor) -> None:
        gradient = torch.zeros_like(numbers(value))
        gradient[place] = wide(direction).to(gradient)
        self._add(value, gradient)

    def _add(self, value: Value, gradient: Tensor) -> None:
        before = self.gradients.get(value)
        self.gradients[value] = gradient if before is None else before + gradient

    def run(self) -> None:
        self._resolve()
        for operation in reversed(self.operations):
            gradients: dict[int, Tensor] = {}
            for number, value in enumerate(operation.outputs):
                if value in self.gradients:
                    gradient = self._stop(value, self.gradients.pop(value))
                    if gradient.any():
                        gradients[number] = gradient
            carries = gradients and self.linearised.carriers(operation)
            carried = self.linearised.back(operation, gradients) if carries else None
            if carried is None:
                for number, gradient in gradients.items():
                    self._leaf(operation.outputs[number], gradient)
                continue
            for value, gradient in carried[0]:
                self._add(value, gradient)
            if carried[1]:
                kinds = {"edit": "edit", "log_softmax": "fixed"}
                kind = kinds.get(operation.name, "number")
                self.causes.append(Cause(operation.outputs[0].address, kind, carried[1]))
        for value, gradient in self.gradients.items():
            gradient = self._stop(value, gradient)
            if gradient.any():
                self._leaf(value, gradient)
        self.causes.reverse()

    def _resolve(self) -> None:
        """Chosen values that only show others' numbers, and are not on the way, are chosen where
        their numbers were computed."""
        reached = set(self.gradients)
        for operation in reversed(self.operations):
            if reached.intersection(operation.outputs):
                reached.update(self.linearised.carriers(operation))
        for value in [value for value in self.chosen if value not in reached]:
            for address, place in self.chosen[value]:
                if address not in self.view_sources:
                    self.view_sources[address] = _source(value, place)
                source, index = self.view_sources[address]
                if source in reached:
                    self.chosen.setdefault(source, []).append((address, index))

    def _stop(self, value: Value, gradient: Tensor) -> Tensor:
        """The gradient without what belongs to chosen places; an ordinary one goes on through
        them."""
        causes = []
        for address, place in self.chosen.get(value, ()):
            slope = gradient[place].clone()
            self.slopes[address] = slope
            if slope.any() and not self.linearised.ordinary:
                causes.append(Cause(address, "chosen", inner(slope, numbers(value)[place])))
                gradient = gradient.clone()
                gradient[place] = 0.0
        self.causes += reversed(causes)
        return gradient

    def _leaf(self, value: Value, gradient: Tensor) -> None:
        kind = value.kind
        if value.operation is not None:
            status = self.linearised.status(value)
            kind = "constant" if status.rank == Rank.CONSTANT else "fixed"
            kind = "embedding" if value.operation.name == "embedding" else kind
        if adds := inner(gradient, numbers(value)):
            self.causes.append(Cause(value.address, kind, adds))

    def causes_of(self, target: str, number: float) -> Causes:
        total = math.fsum(cause.value for cause in self.causes)
        return Causes(target, self.causes, total, number, [*self._notes()], self.slopes)

    def _notes(self) -> Iterator[str]:
        for reason, sentence in REASONS.items():
            times = [
                f"{function} ({count})"
                for (kind, function), count in self.linearised.fixed.items()
                if kind == reason
            ]
            if times:
                yield f"{sentence}: {', '.join(times)}."
        unmet = [
            name for places in self.chosen.values() for name, _ in places if name not in self.slopes
        ]
        if unmet:
            more = f" and {len(unmet) - 1} more" if len(unmet) > 1 else ""
            yield f"Nothing of it is carried to {unmet[0]}{more}."


def _source(value: Value, place: Index) -> tuple[Value, Index]:
    """The value and the place in which the numbers at a place were computed, if that is one value; else
    the place itself."""
    cells = torch.arange(math.prod(value.shape)).reshape(value.shape)[place]
    if cells.numel() > SHOWN:
        return value, place
    indices = torch.stack(torch.unravel_index(cells.reshape(-1), value.shape), -1)
    sources, places = zip(*(origin(value, tuple(i)) for i in indices.tolist()), strict=True)
    if len(set(sources)) > 1:
        return value, place
    return sources[0], tuple(torch.tensor(places).T.reshape(-1, *cells.shape))


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
    patched: float
    patches: list[Patch]
    correlation: float

    @property
    def title(self) -> str:
        return f"Patches: {self.target}, {self.value:+.4f} here and {self.patched:+.4f} there"

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
        return TableFigure("", ("patched", "gradient", "exact"), ordered[:most], form="+.4f")

    def _sentence(self) -> str:
        return f"Correlation of their ranks: {self.correlation:.3f} of {len(self.patches)} patches."

    def __str__(self) -> str:
        return "\n".join([self.title, *self.table(), self._sentence()])


def _rank_correlation(patches: Sequence[Patch]) -> float:
    table = torch.tensor([(patch.expected, patch.exact) for patch in patches], dtype=torch.float64)
    ranks = table.argsort(0).argsort(0).double()
    if len(patches) > 1:
        return float(torch.corrcoef(ranks.T)[0, 1])
    return math.nan


# --------------------------------------------------------------------------------------- the trace


class Caused(ABC):
    """A recorded pass whose numbers can be split into causes."""

    operations: list[Operation]
    values: dict[str, Value]
    aliases: dict[str, Value]

    @functools.cached_property
    def linearised(self) -> list[Linearised]:
        """The pass made linear around its values, and that with PyTorch's own gradients."""
        return [Linearised(self.operations, ordinary) for ordinary in (False, True)]

    @functools.cached_property
    def view_sources(self) -> dict[str, tuple[Value, Index]]:
        """The values and places in which numbers of views were computed, by the address of the view."""
        return {}

    @abstractmethod
    def value(self, name: str) -> Value:
        """The value at an address without an index."""

    @abstractmethod
    def parse(self, address: str) -> tuple[Value, Slices]:
        """An address as a value and an index."""

    @abstractmethod
    def __getitem__(self, address: str) -> Tensor:
        """The numbers at an address."""

    @abstractmethod
    def edit(self, edits: Mapping[str, Edit]) -> Caused:
        """The pass again with values changed."""

    def sizes(self, value: Value) -> tuple[int, ...]:
        """The sides of a value, as addresses count them."""
        return value.shape

    def attribute(
        self, target: str, to: str | Sequence[str] = (), against: str | None = None
    ) -> Causes:
        """Splits the number at ``target``, less that at ``against``, over the values ``to`` (as
        ``choose`` reads them), and over what else it begins with.

        It is carried back through the pass made linear, so that the causes add up to it.
        """
        carried = _Carried(self, self.choose(to))
        number = carried.begin(self, target, against)
        carried.run()
        return carried.causes_of(target if against is None else f"{target} - {against}", number)

    def edges(
        self, reader: str, writers: str | Sequence[str], direction: Tensor | None = None
    ) -> Causes:
        """Splits a reader's number, or its numbers along a ``direction`` of their shape, over the
        writers: what reaches it from each without passing another.

        With the reader's ``gradients`` from ``attribute`` as direction, the edges add up to what
        the reader adds to that target.
        """
        value, index = self.parse(reader)
        if direction is None:
            self._number(reader)
            direction = torch.ones(())
        read_numbers = numbers(value)[index]
        need(
            direction.shape == read_numbers.shape,
            f"{reader} is {tuple(read_numbers.shape)}; the direction is {tuple(direction.shape)}.",
        )
        carried = _Carried(self, self.choose(writers))
        carried.chosen.pop(value, None)
        carried.seed(value, index, direction)
        carried.run()
        return carried.causes_of(reader, inner(wide(direction).to(read_numbers), read_numbers))

    def slopes(
        self, target: str, to: str | Sequence[str], against: str | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """The number at ``target``, less that at ``against``, and PyTorch's own gradients of it by
        the values ``to`` that it depends on."""
        carried = _Carried(self, self.choose(to), ordinary=True)
        number = carried.begin(self, target, against)
        carried.run()
        return number, carried.slopes

    def compare_patches(
        self, another: Caused, target: str, to: str | Sequence[str], against: str | None = None
    ) -> Patches:
        """Puts each of the values ``to`` of another pass in the place of this one's, beside what
        the ordinary gradient expects of it."""
        addresses = self.choose(to)
        before, slopes = self.slopes(target, addresses, against)

        def number(run: Caused) -> float:
            return float(run[target]) - (0.0 if against is None else float(run[against]))

        patches = []
        for address in addresses:
            change = wide(self._same(another, address)) - wide(self[address])
            slope = slopes.get(address)
            exact = number(self.edit({address: constantly(another[address])})) - before
            patches.append(Patch(address, 0.0 if slope is None else inner(slope, change), exact))
        name = target if against is None else f"{target} - {against}"
        return Patches(name, before, number(another), patches, _rank_correlation(patches))

    def patch_path(
        self,
        another: Caused,
        writer: str,
        reader: str,
        target: str,
        still: str | Sequence[str] = (),
    ) -> float:
        """Change of ``target`` where ``reader`` alone reads what ``writer`` has in another pass;
        values ``still`` stay as they are between the two."""
        between = [address for address in self.choose(still) if address not in (writer, reader)]
        edits = {address: constantly(self[address]) for address in between}
        middle = self.edit({**edits, writer: constantly(self._same(another, writer))})
        return float(self.edit({reader: constantly(middle[reader])})[target]) - float(self[target])

    def choose(self, patterns: str | Sequence[str]) -> list[str]:
        """The addresses that patterns name.

        ``*`` stands for a piece of a name without a dot, ``**`` for any; a word in the place of a
        number for each number: ``blocks.*.attn.z[0,head,5]`` are all heads of all blocks.
        """
        addresses: dict[str, None] = {}
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            name, bracket, inside = pattern.strip().partition("[")
            pieces = [piece.strip() for piece in inside.rstrip(" ]").split(",") if bracket]
            for address in self._like(name) if "*" in name else [name]:
                sizes = (*self.sizes(self.value(address)), *(0 for _ in pieces))
                choices = [
                    [str(at) for at in range(size)] if piece.isidentifier() else [piece]
                    for piece, size in zip(pieces, sizes, strict=False)
                ]
                for index in itertools.product(*choices):
                    addresses[f"{address}[{','.join(index)}]" if index else address] = None
        return list(addresses)

    def _like(self, pattern: str) -> list[str]:
        """Names that a pattern with ``*`` fits, each value's first."""
        runs = [re.escape(run).replace(r"\*", "[^.]*") for run in pattern.split("**")]
        form = re.compile(".*".join(runs))
        names = [name for name in (*self.values, *self.aliases) if form.fullmatch(name)]
        need(
            bool(names),
            f'No address matches "{pattern}"; `why MODEL TEXT` lists them all.',
        )
        return list({self.value(name): name for name in reversed(names)}.values())[::-1]

    def _number(self, address: str) -> tuple[Value, Index]:
        value, index = self.parse(address)
        single = len(index) == len(value.shape) and not any(isinstance(at, slice) for at in index)
        zeros = ",".join("0" for _ in self.sizes(value))
        need(single, f"{address} is not one number; give one, as {value.address}[{zeros}].")
        return value, index

    def _same(self, another: Caused, address: str) -> Tensor:
        """The numbers at an address in another pass, of the shape that they have in this one."""
        shape, patched = self[address].shape, another[address].shape
        need(
            shape == patched,
            f"{address} is {tuple(shape)} here and {tuple(patched)} there; give two inputs of the "
            "same shape.",
        )
        return another[address]


def constantly(value: Tensor) -> Edit:
    """An edit that puts a value in the place of any other."""
    return lambda _: value

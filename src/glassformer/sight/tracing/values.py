"""The values of a forward pass: recorded by the tape, or computed from what was when asked for."""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...core import config, files
from ...core.errors import UserError
from ...core.nn import Model, Tape
from ...core.nn.finite import must_be_finite
from ...core.nn.model import inference
from ...core.nn.replace import replace_modules
from . import descriptions, recurrent  # noqa: F401  (each adds what it describes)
from .kinds import KINDS, Line
from .plan import TAPED, Builder, Op, Plan, describe


@dataclass(frozen=True)
class Operand:
    """A number that another is computed from, and where it stands."""

    address: str
    value: float

    def to_dict(self) -> dict[str, Any]:
        return {"address": self.address, "value": files.json_number(self.value)}


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
            chosen = [(line, 0) for line in self.others[at : at + 1]]
        else:
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
        weights = self.weights.values()
        values = [x for x in operands if x.address.partition("[")[0] not in weights]
        return (values or operands)[0].address

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """JSON form; of the terms at most the ``most`` largest, with how many there are."""
        order = self.order()[:most] if most is not None else list(range(len(self.terms)))
        terms = [(at, *self.term(at)) for at in order]
        return {
            "address": self.address,
            "kind": self.kind,
            "value": files.json_number(self.value),
            "dtype": self.dtype,
            "recomputed": files.json_number(self.recomputed),
            "difference": files.json_number(self.difference),
            "sentence": self.sentence,
            "place": self.place,
            "equation": self.equation,
            "numbers": {name: files.json_number(x) for name, x in self.numbers.items()},
            "count": len(self.terms),
            "terms": [
                {
                    "term": at,
                    "value": files.json_number(value),
                    "operands": [operand.to_dict() for operand in operands],
                }
                for at, value, operands in terms
            ],
            "others": [
                Operand(line.address(), float(line.values[0])).to_dict()
                for line in self.others
                if len(line.values) == 1
            ],
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
            equals = "= " if len(operands) > 1 or self.kind == "softmax" else ""
            text_lines.append(f"    {value:+.6g}  {equals}{factors}")
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


KEEP = 512 << 20
"""Bytes of recorded values that a trace keeps by default; what is beyond is recorded anew when it
is asked for."""
COMPUTED = 256 << 20  # bytes of computed values that are kept, the latest
ATTENDING = ("q", "k", "v", "z")
QUADRATIC = ("qkv", "scores", "pattern")  # recomputed from q and k; qkv from its three parts


class Recorder(Tape):
    """A tape that keeps what a trace keeps; edits as they are given."""

    def __init__(self, patterns: Any, edits: Mapping[str, Any] | None = None) -> None:
        super().__init__(edits=edits)
        self.wanted = patterns

    def watches(self, path: str) -> bool:
        return self.wanted(path) or self.changes(path)

    def record(self, path: str, x: Tensor) -> None:
        if self.wanted(path):
            self.records[path] = x.detach()


class Given(nn.Module):
    """Stands for a block: hands on ``states``, or what it was given where there are none."""

    def __init__(self, states: Tensor | None) -> None:
        super().__init__()
        self.states = states

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        """x (B, T, C) or the states."""
        return x if self.states is None else self.states


class Values:
    """One pass over ``tokens`` (1, T), and the plan of it; ``keep`` bounds the bytes of what is
    recorded."""

    def __init__(
        self,
        model: Model,
        tokens: Tensor,
        source: Tensor | None = None,
        edits: Mapping[str, Any] | None = None,
        keep: int = KEEP,
    ) -> None:
        self.model, self.tokens, self.source, self.edits = model, tokens, source, edits or {}
        tape = Tape(edits=self.edits)
        builder = Builder(
            model, tokens.shape[1], None if source is None else source.shape[1], tape.changes
        )
        describe(model.config, builder)
        self.plan: Plan = builder.plan
        self.parameters = dict(model.named_parameters())
        self.names: dict[str, list[str]] = {}  # an operation's other names
        for alias, id in self.plan.alias.items():
            self.names.setdefault(id, []).append(alias)
        self.dropped = self._beyond(keep)
        self.records: dict[str, Tensor] = {}
        self._made: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()
        started = time.perf_counter()
        self._run(lambda path: self._linear(path) and path not in self.dropped, self.records)
        self.seconds = time.perf_counter() - started
        if not self.edits:  # which may set anything
            # fused kernels make zeros of NaN scores: outputs hide them
            must_be_finite(model, *self.records.values())

    def _beyond(self, keep: int) -> set[str]:
        """The values that are not kept: logits first, then what is inside of blocks, the last ones
        first.

        What a feed-forward holds goes before queries, keys and values: every pattern is made of
        these.
        """
        size = next(self.model.parameters()).element_size()
        recorded = [
            op for op in self.plan if op.id.rpartition(".")[2] in TAPED and not op.quadratic
        ]
        sizes = {op.id: size * math.prod(op.shape) for op in recorded}
        total, dropped = sum(sizes.values()), set[str]()
        stream = {"resid", "embed", "out", "mid", "mid_cross", "state"}
        inner = [
            id for id in reversed(sizes) if id.rpartition(".")[2] not in stream and id != "logits"
        ]
        inner.sort(key=lambda id: id.rpartition(".")[2] in ATTENDING)
        for id in ("logits", *inner):
            if total <= keep:
                break
            total -= sizes.get(id, 0)
            dropped |= {id, *self.names.get(id, ())}
        return dropped

    def _run(self, patterns: Any, records: dict[str, Tensor], model: Model | None = None) -> None:
        model = self.model if model is None else model
        tape = Recorder(patterns, self.edits)
        tape.records = records
        want = "none" if "logits" in self.dropped else "all"
        with inference(model):
            inputs = (self.tokens,) if self.source is None else (self.tokens, self.source)
            model(*inputs, tape=tape, logits=want)

    def _only(self, start: str) -> Model:
        """The model without the blocks that tell nothing of what ``start`` begins: the kept stream
        stands in for them.

        The block before hands on what it gave then, the same bits; where no stream was kept, blocks
        stay.
        """
        swaps: dict[nn.Module, nn.Module] = {}
        for body in config.stacks(self.model.config):
            path = f"{body}.blocks"
            blocks: Any = self.model.get_submodule(path)
            inside = re.match(rf"{re.escape(path)}\.(\d+)\.", start)
            # of no block: what leaves the last one
            at = int(inside.group(1)) if inside else len(blocks)
            if at and f"{path}.{at - 1}.resid" not in self.records:
                continue
            before = (
                [Given(None)] * (at - 1) + [Given(self.records[f"{path}.{at - 1}.resid"])]
                if at
                else []
            )
            swaps[blocks] = nn.ModuleList(
                [*before, *blocks[at : at + 1], *[Given(None)] * (len(blocks) - at - 1)]
            )
        return replace_modules(self.model, swaps) if swaps else self.model

    def _linear(self, path: str) -> bool:
        """True if a value is recorded: not those that grow with the square of the text, unless an
        edit changes them."""
        return path.rpartition(".")[2] not in QUADRATIC or self.edits_at(path)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the recorded values."""
        return sum(value.numel() * value.element_size() for value in self.records.values())

    @property
    def tier(self) -> str:
        """``full``: every linear value is kept; ``resid``: the streams are, and a block is run
        again when opened."""
        return "resid" if self.dropped - {"logits"} else "full"

    def check(self) -> float:
        """The largest difference between this trace's last logits and those of a pass that nobody
        watches."""
        inputs = (self.tokens,) if self.source is None else (self.tokens, self.source)
        with inference(self.model):
            tape = Tape(edits=self.edits) if self.edits else None
            plain = self.model(*inputs, tape=tape)
        name = "logits" if "logits" in self.plan else next(reversed(self.plan.ops))
        fast = plain.logits[:, -1] if name == "logits" else plain.hidden[:, -1]
        recomputed = self._value(
            name if name == "logits" else self._last_hidden(), {"T": self.tokens.shape[1] - 1}
        )[:, -1]
        return float((fast - recomputed).abs().max())

    def _last_hidden(self) -> str:
        return "decoder.out" if "decoder.out" in self.plan else "encoder.out"

    def shape(self, name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The shape of a value or a weight, and the names of its sides."""
        if name in self.plan:
            return self.plan[name].shape, self.plan[name].axes
        value = self._weight(name) if name in self.plan.weights else self._record(name)
        return tuple(value.shape), tuple(f"side {number}" for number in range(value.ndim))

    def _weight(self, name: str) -> Tensor:
        return self.parameters[self.plan.weights[name]].detach()

    def _record(self, name: str) -> Tensor:
        """A recorded value under any of its names; what was dropped is recorded anew, with all of
        its block."""
        if name in self.records:
            return self.records[name]
        key = ("recorded", name)
        if key not in self._made:
            block = re.match(r"(.*\.(?:blocks|cells)\.\d+\.|[^.]*)", name)
            start, fresh = block.group(1) if block else name, dict[str, Tensor]()
            self._run(
                lambda path: (
                    path.startswith(start)
                    and path in self.dropped
                    and path.rpartition(".")[2] not in QUADRATIC
                ),
                fresh,
                self._only(start),
            )
            for path, value in fresh.items():
                self._keep(("recorded", path), value)
        return self._made[key]

    def _keep(self, key: tuple[Any, ...], value: Tensor) -> Tensor:
        self._made[key] = value
        self._made.move_to_end(key)
        cached_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self._made.values())
        while cached_bytes > COMPUTED and len(self._made) > 1:
            _, old = self._made.popitem(last=False)
            cached_bytes -= old.numel() * old.element_size()
        return value

    def _recorded_name(self, op: Op) -> str | None:
        """The name under which the tape has an operation's result."""
        for name in (op.id, *self.names.get(op.id, ())):
            if name in self.records:
                return str(name)
            taped = name in self.dropped and name in self._tape_names()
            if taped and name != "logits" and name.rpartition(".")[2] not in QUADRATIC:
                return str(name)
        return None

    def _tape_names(self) -> set[str]:
        if not hasattr(self, "_taped"):
            from ..looking import paths

            self._taped: set[str] = set(paths(self.model))
        return self._taped

    def _whole(self, name: str) -> Tensor:
        if name in self.plan.weights and name not in self.plan:
            return self._weight(name)
        if name not in self.plan:
            return self._record(name)
        op = self.plan[name]
        size = next(self.model.parameters()).element_size() * math.prod(op.shape)
        if op.quadratic and size > COMPUTED:
            raise UserError(
                f"{name} takes {size / 2**20:,.0f} MiB whole; ask for a head, {name}[0, :, :], "
                "or a row, [0, 5, :]."
            )
        return self._value(name, {})

    def _value(self, name: str, select: Mapping[str, int]) -> Tensor:
        """An operation's result; of ``select`` only that head (H) or row (T), its side kept with
        size 1."""
        op = self.plan[name]
        if op.kind == "leaf":
            return _take(self._leaf(op), op.axes, op.shape, select)
        recorded = self._recorded_name(op)
        if recorded is not None:
            return _take(self._record(recorded), op.axes, op.shape, select)
        kind = KINDS[op.kind]
        selection = (
            {}
            if kind.needs_whole_input
            else {axis: at for axis, at in select.items() if axis in op.axes}
        )
        key = (op.id, *sorted(selection.items()))
        if key not in self._made:
            self._keep(key, self.compute(op, selection))
        return _take(self._made[key], op.axes, op.shape, select)

    def compute(self, op: Op, select: Mapping[str, int] | None = None) -> Tensor:
        """The operation's result, computed from its inputs, even where its own result was
        recorded."""
        inputs = []
        for number, name in enumerate(op.inputs):
            if name == op.id:  # a loop through time
                continue
            # a source's tokens are not ours
            axes = self.plan[name].axes if number != op.params.get("keys") else ()
            chosen = {
                axis: at for axis, at in (select or {}).items() if axis in op.axes and axis in axes
            }
            if select and "H" in select and "K" in axes:
                chosen["K"] = select["H"] // op.params["group"]
            inputs.append(self._value(name, chosen))
        weights = {role: self._weight(address) for role, address in op.weights.items()}
        with inference(self.model):
            result = KINDS[op.kind].compute(op, inputs, weights)
        return _take(result, op.axes, op.shape, select or {})

    def _leaf(self, op: Op) -> Tensor:
        if op.id in ("tokens", "source"):
            ids = self.tokens if op.id == "tokens" else self.source
            assert ids is not None
            return ids
        return torch.arange(op.shape[1], device=self.tokens.device)[None]

    def edits_at(self, path: str) -> bool:
        """True if an edit changes the value of this name."""
        return Tape(edits=self.edits).changes(path)

    def read_line(self, name: str, index: tuple[int | None, ...]) -> Line:
        """Cells side by side, as float64."""
        if name in self.plan.weights and name not in self.plan:
            value = self._weight(name)
            return Line(name, index, _line(value, index))
        op = self.plan[name]
        index = tuple(
            place % size if place is not None else None
            for place, size in zip(index, op.shape, strict=True)
        )
        select = {
            axis: at
            for axis, at in zip(op.axes, index, strict=True)
            if at is not None and axis in ("H", "T")
        }
        value = self._value(op.id, select)
        local = tuple(
            0 if axis in select else place for axis, place in zip(op.axes, index, strict=True)
        )
        # left out of addresses
        batch = op.axes[0] in ("B", "N") and op.shape[0] == 1 and len(index) > 1
        return Line(op.id, index[1:] if batch else index, _line(value, local))


def _take(
    value: Tensor, axes: Sequence[str], shape: Sequence[int], select: Mapping[str, int]
) -> Tensor:
    """The chosen place of each side that still has all of them; the sides stay."""
    for number, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        if axis in select and value.shape[number] == size and size > 1:
            value = value.narrow(number, select[axis], 1)
    return value


def _line(value: Tensor, index: tuple[int | None, ...]) -> Tensor:
    cells = value[tuple(slice(None) if place is None else place for place in index)]
    return cells.detach().reshape(-1).to("cpu", torch.float64)

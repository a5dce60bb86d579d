"""The plan of a pass: its operations in order, with their kinds and the names of their sides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.files import JsonObject
from ..axes import along_source
from .operations import Operation, Value
from .rules import CASTS, MOVES, POINTWISE
from .sides import Sides

SIDES = {
    "B T C": "token segment position embed in write mid mid_cross resid out state",
    "B H T D": "q z",
    "B K S D": "k v",
    "B H T S": "qk scaled capped biased scores pattern",
    "B T F": "pre gate up hidden",
    "B T k F": "pre gate up hidden",
    "B T E": "router router_probs",
    "B T k": "weight chosen",
    "B T V": "logits probs",
    "B T QKV": "qkv",
    "B T HD": "q_proj",
    "B S KD": "k_proj v_proj",
    "N C": "vector",
    "N L": "write",
    "B T": "tokens source",
}
"""The names of the sides of a value by the last word of its address: B batch, T tokens (queries),
S keys, H heads, K key-value heads, D of a head, C model dim, F hidden, V vocabulary, E experts, k
chosen experts, L labels, N documents."""
AXES: dict[tuple[str, int], tuple[str, ...]] = {
    (word, len(sides.split())): tuple(sides.split())
    for sides, words in SIDES.items()
    for word in words.split()
}
KINDS = {
    ("linear", "logits"): "lm_head",
    ("linear", "router"): "router",
    ("add", "resid"): "residual",
    ("add", "mid"): "residual",
    ("add", "mid_cross"): "residual",
    ("add", "q"): "rope",
    ("add", "k"): "rope",
    ("transpose", "q"): "split",
    ("transpose", "k"): "split",
    ("transpose", "v"): "split",
    ("matmul", "qk"): "qk",
    ("mul", "scaled"): "scale",
    ("mul", "capped"): "softcap",
    ("masked_fill", "scores"): "mask",
    ("view", "z"): "av",
    ("mul", "hidden"): "glu",
    ("embedding", ""): "lookup",
    ("layer_norm", ""): "norm",
    ("rms_norm", ""): "norm",
    ("cat", ""): "concat",
    **{(name, ""): "act" for name in ("gelu", "silu", "relu", "tanh")},
}
"""The word of screens for an operation, by its function and its value's name or variable."""

ARGUMENTS = {"scale": "by", "softcap": "cap"}
"""The word of screens for the number that an operation of a kind takes."""

FOLDED = POINTWISE | CASTS | MOVES  # steps without a name that are opened from what they lead to


def last_word(value: Value) -> str:
    return value.address.rpartition(".")[2]


def axes_of(value: Value) -> tuple[str, ...]:
    """The names of a value's sides: by its name, or those of an operand of the same shape."""
    word, count = last_word(value), len(value.shape)
    if value.kind == "weight" and value.operation is None:
        return tuple(f"side {number}" for number in range(count))
    if (word, count) in AXES:
        return AXES[word, count]
    return _inherited(value)


def _inherited(value: Value) -> tuple[str, ...]:
    axes = [f"side {number}" for number in range(len(value.shape))]
    if value.batch:
        axes[0] = "B"
    for x in value.operation.inputs if value.operation else ():
        if x.kind == "weight" and x.operation is None:
            continue
        if x.shape == value.shape:
            return axes_of(x)
    return tuple(axes)


@dataclass(frozen=True)
class Op:
    """One operation: its address, kind, inputs, weights by their role, and the sides of its
    result.

    ``module`` is the path of the module that computes it, where its address does not say; the
    tokens of an encoder-decoder's source run along ``of_source``.
    """

    value: Value
    id: str
    kind: str
    inputs: tuple[str, ...]
    axes: tuple[str, ...]
    weights: Mapping[str, str]
    source: str
    module: str = ""
    of_source: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def layer(self) -> int | None:
        """The number of its block or recurrent layer."""
        names = (self.module or self.id).split(".")
        numbers = (
            name
            for before, name in itertools.pairwise(["", *names])
            if self.module or before in ("blocks", "cells", "back")
        )
        return next((int(number) for number in numbers if number.isdigit()), None)

    @property
    def quadratic(self) -> bool:
        """True if it grows with the square of the text, and so is computed on request."""
        operation = self.value.operation
        return {"T", "S"} <= set(self.axes) or bool(operation and operation.is_written_out)

    @property
    def is_attention(self) -> bool:
        """True for what the heads of an attention look at."""
        return self.kind == "softmax" and self.axes[-3:] == ("H", "T", "S")

    @property
    def params(self) -> JsonObject:
        """Plain arguments of the function."""
        operation = self.value.operation
        numbers = [x for x in operation.leaves if isinstance(x, int | float)] if operation else []
        params: JsonObject = {"arguments": ", ".join(map(str, numbers))}
        if numbers and self.kind in ARGUMENTS:
            params[ARGUMENTS[self.kind]] = numbers[0]
        if operation and self.kind == "norm":
            params["type"] = operation.name.removesuffix("_norm")
        if operation and self.kind == "act":
            params["act"] = operation.name
        return params

    def at(self, *places: int) -> str:
        """The address of a part of its value, without the batch row."""
        first = (0,) if self.axes[:1] == ("row",) else ()
        return f"{self.id}[{','.join(map(str, (*first, *places)))}]"

    def to_dict(self) -> JsonObject:
        """The plan as JSON holds it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "layer": self.layer,
            "module": self.module,
            "in": list(self.inputs),
            "w": dict(self.weights),
            "axes": list(self.axes),
            "of_source": list(self.of_source),
            "shape": list(self.shape),
            "params": self.params,
            "src": self.source,
        }


class Plan:
    """Operations by address, in the order in which they were computed, of all that depends on the
    tokens."""

    def __init__(self, trace: Any) -> None:
        self.trace, self.aliases = trace, trace.aliases
        self.weights = {x.address: x.address for x in trace.leaves if x.kind == "weight"}
        self.sides: Sides | None = None
        self.has_source = any(x.address == "source" for x in trace.leaves)
        if any(value.is_named for value in trace.aliases.values()):
            visible = _visible(trace)
            named = {  # of the named values of a module, by their shape
                (value.address.rpartition(".")[0], value.shape): axes_of(value)
                for value in visible
                if value.is_named
            }
        else:  # a module without names of ours
            outputs = [trace.aliases[name] for name in trace.outputs]
            self.sides = Sides(trace.operations, trace.leaves, outputs)
            visible, named = dict.fromkeys(_computed(self.sides, outputs)), {}
            if self.sides.head is not None:
                self.aliases = {**trace.aliases, "logits": self.sides.head}
        self.ops: dict[str, Op] = {}
        for value in visible:
            home = value.operation.place[0] if value.operation else ""
            axes = None if value.is_named else named.get((home, value.shape))
            self.ops[value.address] = self._op(value, visible, axes or self.axes(value))

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops.values())

    def __len__(self) -> int:
        return len(self.ops)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Op | None:
        """The operation of any of its names, None where there is none."""
        value = self.aliases.get(name)
        return self.ops.get(name) or (self.ops.get(value.address) if value else None)

    def __getitem__(self, name: str) -> Op:
        op = self.get(name)
        if op is None:
            raise KeyError(name)
        return op

    @property
    def head(self) -> Op | None:
        """The logits over the vocabulary, where there are any."""
        op = self.get("logits")
        return op if op is not None and op.axes[-1:] == ("V",) else None

    def axes(self, value: Value) -> tuple[str, ...]:
        """The names of a value's sides."""
        op = self.ops.get(value.address)
        if op is not None:
            return op.axes
        return axes_of(value) if self.sides is None else self.sides.of(value)

    def across(self, value: Value, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The sides along which the tokens of an encoder-decoder's source run."""
        if self.sides is not None:
            return self.sides.across(value)
        return tuple(x for x in axes if self.has_source and along_source(value.address, x))

    def names(self) -> dict[str, list[str]]:
        """The other names of operations."""
        names: dict[str, list[str]] = {}
        for name, value in self.aliases.items():
            if name != value.address:
                names.setdefault(value.address, []).append(name)
        return names

    def to_dict(self) -> list[JsonObject]:
        return [op.to_dict() for op in self]

    def _op(self, value: Value, visible: Mapping[Value, None], axes: tuple[str, ...]) -> Op:
        across = self.across(value, axes)
        operation = value.operation
        if operation is None:
            return Op(value, value.address, "leaf", (), axes, {}, "", "", across)
        weights = {
            x.address.rpartition(".")[2]: x.address for x in operation.inputs if x.kind == "weight"
        }
        word = last_word(value) if value.is_named else operation.line.variable(0, 1)
        if self.sides is not None:
            word = "logits" if value is self.sides.head else ""
        plain = KINDS.get((operation.name, ""), operation.name)
        kind, inputs = KINDS.get((operation.name, word), plain), (*_sources(operation, visible),)
        if value.address in ("pool.write", "token_head.write"):
            kind = "classify"
        line, module = str(operation.line), operation.place[0] if self.sides else ""
        return Op(value, value.address, kind, inputs, axes, weights, line, module, across)


def _visible(trace: Any) -> dict[Value, None]:
    """Values with a name, and sums, products and norms that depend on the tokens."""
    inputs = [x for x in trace.leaves if x.kind == "input"]
    reached, visible = set(inputs), dict.fromkeys(inputs)
    for operation in trace.operations:
        depends = any(x in reached for x in operation.inputs)
        for value in operation.outputs:
            if depends:
                reached.add(value)
            elif not value.is_named:
                continue
            written_out = operation.is_written_out and operation.name in POINTWISE
            folded = value.is_view or (operation.name in FOLDED and not written_out)
            if value.is_named or (value.dtype.is_floating_point and not folded):
                visible[value] = None
    return visible


def _computed(sides: Sides, outputs: list[Value]) -> Iterator[Value]:
    """Values that a module computes of its inputs: no views, no copies, no positions and masks."""
    for value in sides.depends:
        operation = value.operation
        moves = operation is not None and (value.is_view or operation.name in CASTS | MOVES)
        is_computed = value.dtype.is_floating_point and not moves
        if operation is None or value in outputs or is_computed:
            yield value


def _sources(operation: Operation, visible: Mapping[Value, None]) -> dict[str, None]:
    """The visible values that an operation reads, others walked through."""
    sources: dict[str, None] = {}
    stack, walked = [*reversed(operation.inputs)], set[Value]()
    while stack:
        x = stack.pop()
        if x in visible:
            sources[x.address] = None
        elif x.operation is not None and x not in walked:
            walked.add(x)
            stack += reversed(x.operation.inputs)
    return sources

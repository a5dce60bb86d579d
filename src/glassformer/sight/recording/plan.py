"""The plan of a pass of ours: its operations in order, with their kinds and the names of their sides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .module_trace import ModuleTrace
from .operations import Operation, Value
from .rules import CASTS, MOVES, POINTWISE

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
"""The names of the sides of a value by the last word of its address: B batch, T tokens (queries), S
keys, H heads, K key-value heads, D of a head, C model dim, F hidden, V vocabulary, E experts, k
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
    result."""

    value: Value
    id: str
    kind: str
    inputs: tuple[str, ...]
    axes: tuple[str, ...]
    weights: Mapping[str, str]
    source: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def layer(self) -> int | None:
        """The number of its block or recurrent layer."""
        names = self.id.split(".")
        numbers = (b for a, b in itertools.pairwise(names) if a in ("blocks", "cells", "back"))
        return next((int(number) for number in numbers if number.isdigit()), None)

    @property
    def quadratic(self) -> bool:
        """True if it grows with the square of the text, and so is computed on request."""
        operation = self.value.operation
        return {"T", "S"} <= set(self.axes) or bool(operation and operation.is_written_out)

    @property
    def params(self) -> dict[str, Any]:
        """Plain arguments of the function."""
        operation = self.value.operation
        leaves = operation.leaves if operation else []
        return {"arguments": ", ".join(str(x) for x in leaves if isinstance(x, int | float))}

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "layer": self.layer,
            "in": list(self.inputs),
            "w": dict(self.weights),
            "axes": list(self.axes),
            "shape": list(self.shape),
            "params": self.params,
            "src": self.source,
        }


class Plan:
    """Operations by address, in the order in which they were computed, of all that depends on the
    tokens."""

    def __init__(self, trace: ModuleTrace) -> None:
        self.trace = trace
        self.weights = {x.address: x.address for x in trace.leaves if x.kind == "weight"}
        visible = _visible(trace)
        sides = {  # of the named values of a module, by their shape
            (value.address.rpartition(".")[0], value.shape): axes_of(value)
            for value in visible
            if value.is_named
        }
        self.ops: dict[str, Op] = {}
        for value in visible:
            home = value.operation.place[0] if value.operation else ""
            axes = axes_of(value) if value.is_named else sides.get((home, value.shape))
            self.ops[value.address] = _op(value, visible, axes or axes_of(value))

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops.values())

    def __len__(self) -> int:
        return len(self.ops)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Op | None:
        """The operation of any of its names, None where there is none."""
        value = self.trace.aliases.get(name)
        return self.ops.get(name) or (self.ops.get(value.address) if value else None)

    def __getitem__(self, name: str) -> Op:
        op = self.get(name)
        if op is None:
            raise KeyError(name)
        return op

    def to_dict(self) -> list[dict[str, Any]]:
        return [op.to_dict() for op in self]


def _visible(trace: ModuleTrace) -> dict[Value, None]:
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


def _op(value: Value, visible: Mapping[Value, None], axes: tuple[str, ...]) -> Op:
    operation = value.operation
    if operation is None:
        return Op(value, value.address, "leaf", (), axes, {}, "")
    weights = {
        x.address.rpartition(".")[2]: x.address for x in operation.inputs if x.kind == "weight"
    }
    word = last_word(value) if value.is_named else operation.line.variable(0, 1)
    kind = KINDS.get((operation.name, word)) or KINDS.get((operation.name, "")) or operation.name
    if value.address in ("pool.write", "token_head.write"):
        kind = "classify"
    inputs = dict.fromkeys(_sources(operation, visible))
    return Op(value, value.address, kind, tuple(inputs), axes, weights, str(operation.line))


def _sources(operation: Operation, visible: Mapping[Value, None]) -> Iterator[str]:
    """The visible values that an operation reads, others walked through."""
    for x in operation.inputs:
        if x in visible:
            yield x.address
        elif x.operation is not None:
            yield from _sources(x.operation, visible)

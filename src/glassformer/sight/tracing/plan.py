"""The plan of a forward pass: every operation between the token ids and the probabilities, in
order, by address.

An operation is named as the tape names its result (``decoder.blocks.3.attn.q``); what lies between
two taped values has a name beside theirs (``attn.qk``, ``attn.scaled``). Its kind says what it
does, its inputs are other operations.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from ...core import config
from ...core.nn import Model
from ...core.nn.lora import LoRALinear

D = TypeVar("D", bound=Callable[..., str])
Axes = tuple[str, ...]
# a function of nn/, and a piece of the line in it that computes the value
Code = tuple[Callable[..., Any], str]

TAPED = {
    "token",
    "segment",
    "position",
    "embed",
    "in",
    "qkv",
    "q",
    "k",
    "v",
    "scores",
    "pattern",
    "z",
    "write",
    "mid",
}
TAPED |= {
    "mid_cross",
    "resid",
    "pre",
    "gate",
    "up",
    "hidden",
    "router",
    "weight",
    "chosen",
    "out",
    "state",
    "vector",
}
TAPED |= {"logits"}
"""Last words of the tape's own names (docs/names.md)."""

_DESCRIPTIONS: dict[type, Callable[..., str]] = {}


def describes(kind: type) -> Callable[[D], D]:
    """Decorator: this function (config, builder, path, input, ...) -> output adds what a config's
    module computes."""

    def register(describe: D) -> D:
        _DESCRIPTIONS[kind] = describe
        return describe

    return register


def described() -> set[type]:
    """Every config type that has a description."""
    return set(_DESCRIPTIONS)


@functools.cache  # the blocks of a model share their code
def _line(function: Callable[..., Any], needle: str) -> str:
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    at = next((number for number, line in enumerate(lines) if needle in line), 0)
    file = inspect.getsourcefile(inspect.unwrap(function)) or ""
    return f"{file.rpartition('glassformer/')[2]}:{first + at}"


@dataclass(frozen=True)
class Op:
    """One operation: its address, kind, inputs, weights by their role, and the named sides of its
    result.

    ``axes``: B batch, T tokens (queries), S keys, H heads, K key-value heads, D of a head, C model
    dim, F hidden, V vocabulary, E experts, k chosen experts, L labels, N documents.
    """

    id: str
    kind: str
    inputs: tuple[str, ...]
    axes: Axes
    shape: tuple[int, ...]
    # role -> name of a weight in Plan.weights
    weights: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    code: Code | None = None

    @property
    def layer(self) -> int | None:
        """The number of its block or recurrent layer."""
        names = self.id.split(".")
        numbers = (b for a, b in itertools.pairwise(names) if a in ("blocks", "cells", "back"))
        return next((int(number) for number in numbers), None)

    @property
    def quadratic(self) -> bool:
        """True if it grows with the square of the text, and so is computed on request."""
        return {"T", "S"} <= set(self.axes)

    @property
    def source(self) -> str:
        """``core/nn/attention.py:84``: the line of the package, or of a user's file, that computes
        it."""
        return "" if self.code is None else _line(*self.code)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        visible_params = {
            name: value
            for name, value in self.params.items()
            if isinstance(value, int | float | str | bool)
        }
        record = {
            "id": self.id,
            "kind": self.kind,
            "layer": self.layer,
            "in": list(self.inputs),
            "w": dict(self.weights),
        }
        return {
            **record,
            "axes": list(self.axes),
            "shape": list(self.shape),
            "params": visible_params,
            "src": self.source,
        }


@dataclass
class Plan:
    """Operations by address, in the order in which they are computed; other names of the same
    values; weights."""

    ops: dict[str, Op] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # address -> path of the parameter

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops.values())

    def __len__(self) -> int:
        return len(self.ops)

    def __contains__(self, name: str) -> bool:
        return name in self.ops or name in self.alias

    def get(self, name: str) -> Op | None:
        """The operation of any of its names, None where there is none."""
        return self.ops.get(self.alias.get(name, name))

    def __getitem__(self, name: str) -> Op:
        return self.ops[self.alias.get(name, name)]

    def to_dict(self) -> list[dict[str, Any]]:
        return [op.to_dict() for op in self]


class Builder:
    """Adds operations to a plan, for the descriptions of blocks; each method returns the address of
    its result."""

    def __init__(
        self,
        model: Model,
        tokens: int,
        source: int | None = None,
        edited: Callable[[str], bool] | None = None,
    ):
        self.model, self.plan, self.edited = model, Plan(), edited or (lambda path: False)
        self.tokens, self.source = tokens, source
        self.parameters = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
        self.pos, self.key_pos, self.ids = "pos", "pos.keys", "tokens"
        self.memory, self.memory_pos = "", ""  # an encoder's output, and its positions as keys
        # the config of the stack's position scheme, and the path of its module
        self.position: Any = None
        self.position_module = ""

    # ------------------------------------------------------------------------------ operations

    def add(
        self,
        id: str,
        kind: str,
        inputs: tuple[str, ...],
        axes: Axes,
        shape: tuple[int, ...],
        code: Code | None = None,
        weights: Mapping[str, str] | None = None,
        **params: Any,
    ) -> str:
        """An operation; its inputs by any of their names."""
        inputs = tuple(self.plan.alias.get(name, name) for name in inputs)
        assert id not in self.plan, id
        self.plan.ops[id] = Op(id, kind, inputs, axes, shape, weights or {}, params, code)
        return id

    def add_like(
        self, id: str, kind: str, x: str, *inputs: str, code: Code | None = None, **params: Any
    ) -> str:
        """An operation whose result has the sides of its first input."""
        op = self.plan[x]
        return self.add(id, kind, (x, *inputs), op.axes, op.shape, code, **params)

    def name(self, x: str, id: str) -> str:
        """Give the value ``x`` the address under which the tape knows it; a value that has one
        keeps both."""
        if x == id:
            return x
        last = next(reversed(self.plan.ops))
        if x == last and x.rpartition(".")[2] not in TAPED:  # a name that only this plan knows
            op = self.plan.ops.pop(x)
            self.plan.ops[id] = replace(op, id=id)
            return id
        if self.edited(id):
            return self.add_like(id, "edit", x)
        self.plan.alias[id] = self.plan.alias.get(x, x)
        return id

    def weight(self, address: str, path: str | None = None) -> str:
        """The address of a parameter, which is its path but for stacked tables."""
        self.plan.weights[address] = path or address
        return address

    def of_module(self, module: str, **roles: str) -> dict[str, str]:
        """Parameters that a module has, by role."""
        paths = {role: f"{module}.{name}" for role, name in roles.items()}
        return {role: self.weight(path) for role, path in paths.items() if path in self.parameters}

    def linear(
        self, id: str, x: str, module: str, axis: str, code: Code, kind: str = "linear"
    ) -> str:
        """x W^T (+ b) by the linear layer at the path ``module``; a low-rank change stands
        apart."""
        layer = self.model.get_submodule(module)
        weights = self.of_module(module, weight="weight", bias="bias")
        out, axes = self.parameters[f"{module}.weight"][0], self.plan[x].axes[:-1]
        shape = self.plan[x].shape[:-1]
        if not isinstance(layer, LoRALinear) or layer.original is not None:
            return self.add(id, kind, (x,), (*axes, axis), (*shape, out), code, weights)
        lora = (LoRALinear.forward, "self.down")
        base = self.add(f"{id}.base", kind, (x,), (*axes, axis), (*shape, out), code, weights)
        down, up = (self.of_module(module, weight=name) for name in ("down", "up"))
        low = self.add(
            f"{id}.lora_down", "linear", (x,), (*axes, "R"), (*shape, len(layer.down)), lora, down
        )
        change = self.add(
            f"{id}.lora_up",
            "linear",
            (low,),
            (*axes, axis),
            (*shape, out),
            lora,
            up,
            factor=layer.scale,
        )
        return self.add_like(id, "add", base, change, code=lora)

    def norm(self, id: str, x: str, cfg: config.Norm | None, module: str) -> str:
        """The norm of ``x`` by a config; without one the value has one more name."""
        return self.name(x, id) if cfg is None else describe(cfg, self, id, x, module)

    def generic(
        self,
        id: str,
        inputs: tuple[str, ...],
        axes: Axes,
        shape: tuple[int, ...],
        child: Any,
        call: Any,
    ) -> str:
        """Operation without a description: the module itself is called, and its arithmetic stays
        closed."""
        module = next(
            (path for path, candidate in self.model.named_modules() if candidate is child), ""
        )
        weight_names = {
            name: self.weight(name)
            for name in self.parameters
            if module and name.startswith(f"{module}.")
        }
        forward = getattr(type(child), "forward", type(child))
        return self.add(
            id, "generic", inputs, axes, shape, (forward, "def "), weight_names, call=call
        )


def describe(cfg: Any, b: Builder, *args: Any, **named: Any) -> str:
    """Add what the module of ``cfg`` computes. Raises KeyError for a type that nobody has
    described."""
    if type(cfg) not in _DESCRIPTIONS:
        raise KeyError(f"no description of {type(cfg).__name__}: see sight/tracing")
    return _DESCRIPTIONS[type(cfg)](cfg, b, *args, **named)


def can_describe(cfg: Any) -> bool:
    """True if this config's type has a description."""
    return type(cfg) in _DESCRIPTIONS


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

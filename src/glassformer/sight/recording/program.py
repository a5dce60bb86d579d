"""A recorded pass as a program for texts of any length: what a browser computes without Python.

The pass is recorded at several lengths. A size that differs between them is a number for each length
(``[4, 1]`` is 4 + T), and everything else has to be equal: a model that takes another way for another
text has no program. web/src/compute runs it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core import config
from ...core.errors import UserError
from ...core.tokenizer import tokenizer_json
from .. import answers
from ..looking import text_frame
from ..wire import Array
from . import words
from .operations import NEW, Operation, Value

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

NAMES = """
linear matmul bmm embedding softmax layer_norm rms_norm add sub mul div rdiv rsub pow rpow neg exp
log sqrt rsqrt square abs cos sin tanh sigmoid relu gelu silu clamp clamp_min floor_divide remainder
maximum minimum le ge lt gt eq ne and or logical_and logical_or logical_not masked_fill where view
reshape transpose permute T mT flip pad flatten unflatten unsqueeze squeeze expand expand_as
contiguous clone detach cat stack chunk split getitem roll repeat_interleave to float long bool
arange tensor zeros ones full zeros_like ones_like new_zeros new_full mean sum amax cumsum topk
dropout view_as int index_select index_copy index_add scatter_add scatter_reduce nonzero bincount
argsort grouped_mm logsumexp
"""
FUNCTIONS = frozenset(NAMES.split())
"""The functions that web/src/compute/functions.ts knows; a test holds the two lists together."""
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORTEST, LONGEST = 12, 512  # tokens at which the last pass is recorded


class Mismatch(Exception):
    """Two passes differ in more than sizes."""


class Sizes:
    """Numbers of the same place in passes of several ``lengths``."""

    def __init__(self, lengths: Sequence[tuple[int, ...]]) -> None:
        self.rows = torch.tensor([[1, *row] for row in lengths], dtype=torch.float64)

    def __call__(self, numbers: Sequence[int]) -> int | list[int]:
        """One number, or ``[constant, times the first length, ..]``."""
        if len(set(numbers)) == 1:
            return numbers[0]
        column = torch.tensor(numbers, dtype=torch.float64)
        fitted = (
            torch.linalg.lstsq(self.rows, column[:, None], driver="gelsd").solution[:, 0].round()
        )
        if not torch.equal(self.rows @ fitted, column):
            raise Mismatch(f"{numbers} does not follow the length of the text")
        return [int(x) for x in fitted.tolist()]


def program(trace: Any) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """The model of a pass in single precision as a program, and its weights by their addresses; None
    where it has none.

    ``leaves`` are weights, inputs and constants, ``operations`` the functions in order with their
    arguments, ``plan`` the operations that the page shows. JSON holds it.
    """
    model, length = trace.model, trace.tokens.shape[1]
    longest = min(model.config.context, LONGEST)
    is_single = all(x.dtype == torch.float32 for x in model.parameters())
    if trace.edits or not is_single or longest < max(length, SHORTEST):
        return None
    # twice at first: what a model computes once for all passes is a constant of every later one
    lengths: list[tuple[int, ...]] = [(5,), (5,), (9,), (longest,)]
    if trace.source is not None:
        lengths = [(5, 7), (5, 7), (9, 7), (5, 11), (longest, longest)]
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> Tensor:
        return torch.randint(model.config.embed.vocab, (1, length), generator=generator)

    try:
        passes = [
            type(trace)(model, None, ids(row[-1]), None if len(row) == 1 else ids(row[0]))
            for row in lengths
        ]
        writer = _Writer(passes[1:], Sizes(lengths[1:]))
        written = writer.written()
    except (Mismatch, UserError):
        return None
    names = {operation["name"] for operation in written["operations"]}
    tokenizer = trace.tokenizer
    facts = {
        "longest": longest,
        "has_words": tokenizer is not None,
        "tokenizer": None if tokenizer is None else _tokenizer(model.config, tokenizer),
        "eos": None if tokenizer is None else tokenizer.eos,
        "last": trace["logits"][0, -1].tolist() if "logits" in trace.plan else [],
        "words": {
            "equations": {name: words.equation(name) for name in names},
            "sentences": {name: x for name, x in words.SENTENCES.items() if name in names},
            "leaves": words.LEAVES,
        },
    }
    return written | facts, {name: _narrow(x) for name, x in writer.tensors.items()}


def _narrow(tensor: Tensor) -> Array:
    """Numbers in half precision where that is exact."""
    half = tensor.half()
    exact = tensor.is_floating_point() and torch.equal(half.float(), tensor)
    return (half if exact else tensor).contiguous().numpy()


class _Writer:
    """Writes passes that differ in their sizes as one."""

    def __init__(self, passes: Sequence[Any], sizes: Sizes) -> None:
        self.passes, self.sizes = passes, sizes
        self.leaves: list[dict[str, Any]] = []
        self.tensors: dict[str, Tensor] = {}  # of the leaves that are not given
        self.numbers: dict[Value, int] = {}  # of the values of the first pass

    def written(self) -> dict[str, Any]:
        needed = self._needed()
        rows = [trace.operations for trace in self.passes]
        if len({len(row) for row in rows}) > 1:
            raise Mismatch("another number of functions")
        operations = [row for row in zip(*rows, strict=True) if row[0] in needed]
        for values in self._leaf_rows(operations):
            self._leaf(values)
        entries = [self._operation(row) for row in operations]
        return {"leaves": self.leaves, "operations": entries, "plan": self._plan()}

    def _needed(self) -> set[Operation]:
        """The operations that values of the plan come from."""
        needed: set[Operation] = set()
        waiting = [op.value.operation for op in self.passes[0].plan]
        while waiting:
            operation = waiting.pop()
            if operation is not None and operation not in needed:
                needed.add(operation)
                waiting += [x.operation for x in operation.inputs]
        return needed

    def _leaf_rows(
        self, operations: Iterable[tuple[Operation, ...]]
    ) -> Iterable[tuple[Value, ...]]:
        inputs = [op.value for op in self.passes[0].plan if op.value.operation is None]
        yield from (tuple(trace.value(x.address) for trace in self.passes) for x in inputs)
        for row in operations:
            for values in zip(*(operation.inputs for operation in row), strict=True):
                if values[0].operation is None:
                    yield values

    def _leaf(self, values: tuple[Value, ...]) -> None:
        first = values[0]
        if first in self.numbers:
            return
        entry: dict[str, Any] = {"address": first.address, "kind": first.kind, "type": _type(first)}
        if first.kind != "input":
            if any(x.shape != first.shape for x in values):
                raise Mismatch(f"{first.address} depends on the text")
            tensors = [x.tensor for x in values]
            if first.kind == "constant" and not all(
                a is not None and b is not None and torch.equal(a, b)
                for a, b in itertools.pairwise(tensors)
            ):
                raise Mismatch(f"{first.address} depends on the text")
            assert first.tensor is not None
            self.tensors[first.address] = first.tensor.detach()
        self._number(values)
        self.leaves.append(entry)

    def _number(self, values: tuple[Value, ...]) -> None:
        self.numbers[values[0]] = len(self.numbers)

    def _operation(self, row: tuple[Operation, ...]) -> dict[str, Any]:
        first = row[0]
        if first.name not in FUNCTIONS or first.written == NEW:
            raise Mismatch(f"{first.name} has no twin in a browser")
        if any(x.name != first.name or x.spec != first.spec for x in row):
            raise Mismatch("another function")
        leaves = [self._argument(values) for values in zip(*(x.leaves for x in row), strict=True)]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, first.spec)
        outputs = list(zip(*(x.outputs for x in row), strict=True))
        for values in outputs:
            for sides in zip(*(x.shape for x in values), strict=True):
                self.sizes(sides)  # one that follows the numbers, not the length, has no program
            self._number(values)
        return {
            "name": first.name,
            "args": args,
            "kwargs": {name: x for name, x in kwargs.items() if name not in ("device", "out")},
            "outputs": [[x[0].address, _type(x[0]), x[0].is_named] for x in outputs],
            "source": str(first.line),
            "is_written_out": first.is_written_out,
        }

    def _argument(self, values: tuple[Any, ...]) -> Any:
        """An argument as JSON has it: ``{"value": n}``, ``{"size": [..]}``, ``{"slice": [..]}`` or itself."""
        first = values[0]
        if isinstance(first, Value):
            if first not in self.numbers or len({x.key or x.address for x in values}) > 1:
                raise Mismatch("another operand")
            return {"value": self.numbers[first]}
        if isinstance(first, slice):
            bounds = ((x.start, x.stop, x.step) for x in values)
            return {"slice": [self._argument(row) for row in zip(*bounds, strict=True)]}
        if isinstance(first, torch.dtype | torch.device):
            return str(first).removeprefix("torch.")
        if first is Ellipsis:
            return {"ellipsis": True}
        if type(first) is int and all(type(x) is int for x in values):
            number = self.sizes(values)
            return number if isinstance(number, int) else {"size": number}
        if any(x != first for x in values) or not (
            first is None or isinstance(first, bool | float | str)
        ):
            raise Mismatch(f"{first} against {values[1]}")
        if isinstance(first, float) and first - first != 0:  # JSON has no infinity
            return {"float": str(first)}
        return first

    def _plan(self) -> list[dict[str, Any]]:
        plans = [answers.plan(trace) for trace in self.passes]
        if len({len(plan) for plan in plans}) > 1:
            raise Mismatch("another plan")
        entries = []
        for row in zip(*plans, strict=True):
            shapes = zip(*(op.pop("shape") for op in row), strict=True)
            for op in row:
                op["params"].pop("arguments", None)  # sizes may be among them
            if any(op != row[0] for op in row):
                raise Mismatch("another plan")
            entries.append({**row[0], "shape": [self.sizes(sides) for sides in shapes]})
        return entries


def _type(value: Value) -> str:
    """float, int or bool."""
    if value.dtype.is_floating_point:
        return "float"
    return "bool" if value.dtype == torch.bool else "int"


def _tokenizer(cfg: config.Model, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """A byte-level BPE as a browser reads it; None for every other."""
    spec = json.loads(tokenizer.to_json())
    bpe, patterns = spec["model"], []
    for step in tokenizer_json.steps(spec["pre_tokenizer"]):
        if step["type"] == "ByteLevel" and not step["add_prefix_space"]:
            patterns += [GPT2] if step.get("use_regex", True) else []
        elif step["type"] == "Split" and "Regex" in step["pattern"] and not step["invert"]:
            patterns.append(step["pattern"]["Regex"])
        else:
            return None
    odd = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    is_plain = bpe["type"] == "BPE" and not any(bpe.get(key) for key in (*odd, "ignore_merges"))
    names = [token["content"] for token in spec["added_tokens"] if not token["special"]]
    if not is_plain or spec["normalizer"] or names or not isinstance(bpe["merges"], list):
        return None
    _, before, after = text_frame(cfg, tokenizer)
    special = sorted(tokenizer.specials.values())
    table = {"vocab": bpe["vocab"], "merges": bpe["merges"], "patterns": patterns}
    return {**table, "special": special, "before": before, "after": after}

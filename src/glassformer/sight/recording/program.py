"""A recorded pass as a program for texts of any length: what a browser computes without Python.

The pass is recorded at several lengths. A size that differs between them is a number for each length
(``[4, 1]`` is 4 + T), and everything else has to be equal: a model that takes another way for another
text has no program. web/src/compute runs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core import config
from ...core.errors import UserError
from ...core.files import JsonObject
from ...core.tokenizer import tokenizer_json
from .. import answers, wording
from ..inputs import text_frame
from ..wire import Array
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


def program(trace: Any) -> tuple[JsonObject, dict[str, Array]] | None:
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
        pages = [_write(recorded) for recorded in passes[1:]]
        tensors = _tensors([leaves for leaves, _ in pages])
        written = _merge([page for _, page in pages], Sizes(lengths[1:]))
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
            "equations": {name: wording.EQUATIONS.get(name, f"{name}(..)") for name in names},
            "sentences": {name: x for name, x in wording.SENTENCES.items() if name in names},
            "leaves": wording.LEAVES,
        },
    }
    return written | facts, {name: _narrow(x) for name, x in tensors.items()}


def _narrow(tensor: Tensor) -> Array:
    """Numbers in half precision where that is exact."""
    half = tensor.half()
    exact = tensor.is_floating_point() and torch.equal(half.float(), tensor)
    return (half if exact else tensor).contiguous().numpy()


def _write(trace: Any) -> tuple[list[Value], JsonObject]:
    """The leaves of one pass, and the pass as JSON holds it."""
    needed = {op.value.operation for op in trace.plan}
    for operation in reversed(trace.operations):
        if operation in needed:
            needed.update(x.operation for x in operation.inputs)
    operations = [operation for operation in trace.operations if operation in needed]
    operands = [op.value for op in trace.plan] + [x for op in operations for x in op.inputs]
    leaves = [*dict.fromkeys(x for x in operands if x.operation is None)]
    values = (*leaves, *(x for operation in operations for x in operation.outputs))
    numbers = {value: number for number, value in enumerate(values)}
    plan = answers.plan(trace)
    for op in plan:
        op["params"].pop("arguments", None)  # sizes may be among them
    return leaves, {
        "leaves": [{"address": x.address, "kind": x.kind, "type": _type(x)} for x in leaves],
        "operations": [_operation(operation, numbers) for operation in operations],
        "plan": plan,
    }


def _operation(operation: Operation, numbers: Mapping[Value, int]) -> JsonObject:
    if operation.name not in FUNCTIONS or operation.written == NEW:
        raise Mismatch(f"{operation.name} has no twin in a browser")
    leaves = [_argument(leaf, numbers) for leaf in operation.leaves]
    args, kwargs = torch.utils._pytree.tree_unflatten(leaves, operation.spec)
    return {
        "name": operation.name,
        "args": args,
        "kwargs": {name: x for name, x in kwargs.items() if name not in ("device", "out")},
        "outputs": [[x.address, _type(x), x.is_named] for x in operation.outputs],
        "shapes": [list(x.shape) for x in operation.outputs],
        "source": str(operation.line),
        "is_written_out": operation.is_written_out,
    }


def _argument(leaf: Any, numbers: Mapping[Value, int]) -> Any:
    """An argument as JSON has it: ``{"value": n}``, ``{"size": n}``, ``{"slice": [..]}`` or itself."""
    if isinstance(leaf, Value):
        return {"value": numbers[leaf]}
    if isinstance(leaf, slice):
        return {"slice": [_argument(x, numbers) for x in (leaf.start, leaf.stop, leaf.step)]}
    if isinstance(leaf, torch.dtype | torch.device):
        return str(leaf).removeprefix("torch.")
    if leaf is Ellipsis:
        return {"ellipsis": True}
    if type(leaf) is int:
        return {"size": leaf}
    if isinstance(leaf, float) and leaf - leaf != 0:  # JSON has no infinity
        return {"float": str(leaf)}
    if leaf is None or isinstance(leaf, bool | float | str):
        return leaf
    raise Mismatch(f"{leaf} cannot be written")


def _merge(rows: Sequence[Any], sizes: Sizes) -> Any:
    """The same place of the written passes as one: sizes that follow the length of the text."""
    first = rows[0]
    if any(type(x) is not type(first) for x in rows):
        raise Mismatch(f"{first} against {rows[1]}")
    if type(first) is int:
        return sizes(rows)
    if isinstance(first, dict):
        if any(x.keys() != first.keys() for x in rows):
            raise Mismatch("other words")
        merged = {key: _merge([x[key] for x in rows], sizes) for key in first}
        merged.pop("shapes", None)  # a size that follows the numbers has no program
        # a number that is the same for all texts stands alone
        return merged["size"] if isinstance(merged.get("size"), int) else merged
    if isinstance(first, list | tuple):
        if len({len(x) for x in rows}) > 1:
            raise Mismatch("another count")
        return [_merge(row, sizes) for row in zip(*rows, strict=True)]
    if any(x != first for x in rows):
        raise Mismatch(f"{first} against {rows[1]}")
    return first


def _tensors(leaves: Sequence[Sequence[Value]]) -> dict[str, Tensor]:
    """The numbers of weights and constants; a constant has to be that of every pass."""
    tensors: dict[str, Tensor] = {}
    for values in zip(*leaves, strict=False):
        numbers = [x.tensor.detach() for x in values if x.tensor is not None]
        is_fixed = len(numbers) == len(values) and all(torch.equal(x, numbers[0]) for x in numbers)
        if values[0].kind == "constant" and not is_fixed:
            raise Mismatch(f"{values[0].address} depends on the text")
        if values[0].kind != "input":
            tensors[values[0].address] = numbers[0]
    return tensors


def _type(value: Value) -> str:
    """float, int or bool."""
    if value.dtype.is_floating_point:
        return "float"
    return "bool" if value.dtype == torch.bool else "int"


def _tokenizer(cfg: config.Model, tokenizer: Tokenizer) -> JsonObject | None:
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

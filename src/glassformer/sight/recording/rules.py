"""The numbers of its inputs that a part of a result needs: known for the functions that large
tensors meet; of all others, all of them.

A region is one slice a dimension. Functions that only move numbers say where each came from.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .operations import Operation, Value

Region: TypeAlias = tuple[slice, ...]
Index: TypeAlias = tuple[int, ...]


def split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


POINTWISE = split_names(
    """add sub rsub mul div rdiv neg pow rpow exp expm1 exp2 log log1p log2 sqrt rsqrt square
reciprocal abs sign sin cos tan tanh sigmoid erf relu relu6 gelu silu mish selu elu celu
leaky_relu softplus softsign hardswish hardsigmoid hardtanh logsigmoid threshold clamp clamp_min
clamp_max clip maximum minimum where masked_fill lerp addcmul addcdiv floor ceil round trunc
floor_divide remainder fmod eq ne lt le gt ge and or xor not logical_and logical_or logical_not
logical_xor isnan isinf isfinite nan_to_num dropout sinh cosh atan atan2 bitwise_and
bitwise_or bitwise_not bitwise_xor zero fill"""
)
CASTS = split_names(
    """to float double half bfloat16 type type_as int long bool contiguous clone detach data alias
identity cpu cuda"""
)
"""One number gives one number, rounded perhaps."""
MOVES = split_names(
    """view reshape transpose permute t T mT H flatten unflatten unsqueeze squeeze expand expand_as
view_as reshape_as repeat repeat_interleave tile cat concat concatenate stack hstack vstack
getitem setitem narrow select index_select take_along_dim gather chunk split unbind tensor_split
movedim swapaxes flip roll pad tril triu diagonal scatter index_copy copy index_put
masked_scatter masked_select slice_scatter select_scatter overlay broadcast_to rot90 unfold
as_strided meshgrid broadcast_tensors atleast_1d atleast_2d"""
)
"""Each number of the result is one of an input, or a constant."""
SHAPED = {"view", "reshape"}  # of the same shape: nothing at all
CREATED = split_names(
    """empty zeros ones full tensor arange linspace empty_like zeros_like ones_like full_like new_empty
new_zeros new_ones new_full new_tensor eye scalar_tensor"""
)
MARK = 1 << 40  # numbers from here on are places of inputs, smaller ones constants
WHOLE = 1 << 23
"""Numbers of a result that are computed again at once. A part of a product or of a norm is
computed faster, but rounds another way."""
RECENT: WeakKeyDictionary[Value, Tensor] = WeakKeyDictionary()
"""Values that were computed again not long ago, oldest first."""
RECENT_BYTES = 64 << 20
LOCK = threading.Lock()
INDEXED = {
    "gather",
    "index_select",
    "take_along_dim",
    "repeat_interleave",
    "getitem",
    "masked_select",
}


@dataclass(frozen=True)
class Need:
    """The regions of the inputs that give a region of the result; None for a whole input."""

    inputs: list[Region | None]
    output: Region


def full_region(shape: Sequence[int]) -> Region:
    return tuple(slice(0, size) for size in shape)


def cell(index: Index) -> Region:
    return tuple(slice(at, at + 1) for at in index)


def relative(region: Region, base: Region) -> Region:
    """``region`` counted from where ``base`` begins."""
    pairs = zip(region, base, strict=True)
    return tuple(slice(at.start - of.start, at.stop - of.start) for at, of in pairs)


def need(operation: Operation, value: Value, region: Region) -> Need:
    """The regions of the inputs that ``region`` of a result needs."""
    rule = RULES.get(operation.name)
    if rule is None and operation.name in POINTWISE | CASTS:
        rule = _pointwise
    needed = None if rule is None else rule(operation, region)
    return needed or Need([None] * len(operation.inputs), full_region(value.shape))


def _broadcast(shape: Sequence[int], region: Region) -> Region:
    """The part of an input that ``region`` of a broadcast result reads."""
    last = region[len(region) - len(shape) :]
    return tuple(slice(0, 1) if n == 1 else at for n, at in zip(shape, last, strict=True))


def _pointwise(operation: Operation, region: Region) -> Need | None:
    shapes = [value.shape for value in operation.inputs]
    if any(len(shape) > len(region) for shape in shapes):
        return None
    return Need([_broadcast(shape, region) for shape in shapes], region)


def _linear(operation: Operation, region: Region) -> Need | None:
    x, weight, *bias = operation.inputs
    if len(weight.shape) != 2:
        return None
    column, width = region[-1], slice(0, x.shape[-1])
    return Need([(*region[:-1], width), (column, width), *[(column,) for _ in bias]], region)


def _matmul(operation: Operation, region: Region) -> Need | None:
    """The rows of one and the columns of the other; of ``addmm`` after what it is added to."""
    *added, first, second = (value.shape for value in operation.inputs[:3])
    batch, width = list(region), slice(0, first[-1])
    column = () if len(second) == 1 else (batch.pop(),)
    row = () if len(first) == 1 else (batch.pop(),)
    a = (*_broadcast(first[:-2], tuple(batch)), *row, width)
    b = (*_broadcast(second[:-2], tuple(batch)), width, *column)
    return Need([*(_broadcast(shape, region) for shape in added), a, b], region)


def _along(operation: Operation, region: Region) -> Need | None:
    """All of one dimension, the rest alone."""
    (x,), dim = operation.inputs, operation.argument(1, "dim")
    if not isinstance(dim, int):
        return None
    at = dim % len(x.shape)
    row = (*region[:at], slice(0, x.shape[at]), *region[at + 1 :])
    return Need([row], row)


def _norm(operation: Operation, region: Region) -> Need | None:
    """All of the last dimensions."""
    x, *weights = operation.inputs
    sizes = operation.argument(1, "normalized_shape")
    last = len(sizes) if isinstance(sizes, Sequence) else 1
    row = (*region[:-last], *full_region(x.shape[-last:]))
    return Need([row, *[None for _ in weights]], row)


def _channel(operation: Operation, region: Region) -> Need | None:
    """One channel, where the statistics are known before."""
    if operation.argument(5, "training") or len(operation.inputs) < 3:
        return None
    _, *statistics = operation.inputs
    return Need([region, *[(region[1],) for _ in statistics]], region)


RULES: dict[str, Callable[[Operation, Region], Need | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "bmm": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "batch_norm": _channel,
    "addmm": _matmul,
    "baddbmm": _matmul,
    "softmax": _along,
    "log_softmax": _along,
    "layer_norm": _norm,
    "rms_norm": _norm,
}


def read(value: Value, region: Region | None = None) -> Tensor:
    """The numbers of a value. One that is not kept is computed again as the pass computed it, so
    that no bit differs; of a result larger than ``WHOLE`` the region alone where that can be."""
    operation = value.operation if value.tensor is None else None
    if (
        operation is not None
        and operation.name in SHAPED
        and operation.inputs[0].shape == value.shape
    ):
        return read(operation.inputs[0], region)
    if value.tensor is not None:
        tensor = value.tensor.detach()
    elif operation is None or region is None or math.prod(value.shape) <= WHOLE:
        tensor = _again(value)
    else:
        needed = need(operation, value, region)
        tensors = [read(x, at) for x, at in zip(operation.inputs, needed.inputs, strict=True)]
        with torch.no_grad():
            result = operation.run(tensors)[value.output]
        return result[relative(region, needed.output)]
    return tensor if region is None else tensor[region]


def _again(value: Value) -> Tensor:
    """A whole value, and before it those of its operands that are not kept."""
    with LOCK:
        results: dict[Value, Tensor] = dict(RECENT)
        stack = [value]
        while stack:
            operation = stack[-1].operation
            if stack[-1] in results or stack[-1].tensor is not None:
                stack.pop()
                continue
            assert operation is not None, "a value without an operation is kept"
            missing = [x for x in operation.inputs if x.tensor is None and x not in results]
            if missing:
                stack += missing
                continue
            inputs = [results[x] if x.tensor is None else x.tensor for x in operation.inputs]
            with torch.no_grad():
                results |= zip(operation.outputs, operation.run(inputs), strict=False)
            if math.prod(stack[-1].shape) <= WHOLE:
                RECENT[stack[-1]] = results[stack[-1]]
        while sum(x.nbytes for x in RECENT.values()) > RECENT_BYTES:
            del RECENT[next(iter(RECENT))]
        return results[value]


# ------------------------------------------------------------------------------------------- moves


def origin(value: Value, index: Index, start: Value | None = None) -> tuple[Value, Index]:
    """The value that computed a number: views and moves are walked through, to a value that the model
    has a name for, other than ``start``."""
    while (operation := value.operation) is not None and (not value.is_named or value is start):
        step = _viewed(value, index) if value.is_view else None
        if step is None and (operation.name in MOVES or operation.name in CASTS):
            step = _moved(operation, value, index)
        if step is None:
            return value, index
        value, index = step
    return value, index


def behind(value: Value, names: Container[str]) -> Iterator[Value]:
    """A value, and those that it was made of one after the other by functions of these names."""
    yield value
    while value.operation is not None and value.operation.name in names:
        value = value.operation.inputs[0]
        yield value


def _viewed(value: Value, index: Index) -> tuple[Value, Index] | None:
    """The same place in memory, as the operation's input counts it."""
    assert value.operation is not None
    of = value.operation.inputs[0]
    _, offset, stride = value.geometry
    remainder = offset + sum(s * at for s, at in zip(stride, index, strict=True)) - of.geometry[1]
    places = [0] * len(of.shape)
    for dim in sorted(range(len(places)), key=lambda dim: -of.geometry[2][dim]):
        if of.geometry[2][dim] and of.shape[dim] > 1:
            places[dim], remainder = divmod(remainder, of.geometry[2][dim])
    inside = all(0 <= at < size for at, size in zip(places, of.shape, strict=True))
    return (of, tuple(places)) if inside and remainder == 0 else None


def _moved(operation: Operation, value: Value, index: Index) -> tuple[Value, Index] | None:
    """The operation on the numbers of its inputs' places in their stead: each says where it came
    from, and what says nothing is a constant."""
    inputs = operation.inputs
    if operation.name in CASTS:
        cuts = inputs[0].dtype.is_floating_point and not value.dtype.is_floating_point
        return None if cuts or inputs[0].shape != value.shape else (inputs[0], index)
    moved = moving(operation)
    sizes = [math.prod(x.shape) if at in moved else 0 for at, x in enumerate(inputs)]
    starts = [0, *itertools.accumulate(sizes)]
    if operation.origins is None:
        numbers = [
            torch.arange(MARK + start, MARK + start + size).reshape(x.shape)
            if at in moved
            else read(x)
            for at, (x, start, size) in enumerate(zip(inputs, starts, sizes, strict=False))
        ]
        try:
            operation.origins = operation.run(numbers)
        except (RuntimeError, TypeError, IndexError):
            operation.origins = []
    if not operation.origins:
        return None
    number = int(operation.origins[value.output][index]) - MARK
    if number < 0:
        return None
    at = max(at for at in moved if starts[at] <= number)
    places = torch.unravel_index(torch.tensor(number - starts[at]), inputs[at].shape)
    return inputs[at], tuple(int(place) for place in places)


def moving(operation: Operation) -> list[int]:
    """The inputs whose numbers are moved; the others say where to."""
    count = len(operation.inputs)
    if operation.name in INDEXED:
        return [0]
    if operation.name in ("setitem", "index_put", "index_copy", "scatter", "masked_scatter"):
        source = operation.name != "scatter" or isinstance(operation.argument(3, "src"), Value)
        is_tensor = operation.name != "setitem" or isinstance(operation.argument(2, "value"), Value)
        return [0, count - 1] if source and is_tensor and count > 1 else [0]
    return list(range(count))

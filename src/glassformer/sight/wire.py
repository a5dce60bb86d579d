"""Values as a browser takes them: a part of a trace by its address, pooled to a bound, in few
bytes, as safetensors.

    trace[address] --Part--> float32 (.., rows, columns) --pooled--> (.., 48, 48) --coded--> u8,
    f16, f32 --packed-->

A pooled cell is the number of its tile that is furthest from zero, so one hot cell among a million
stays visible. To decode u8: x = q / 255; for "sqrt" x = x * x; value = min + (max - min) * x. Where
``hole`` is "1", q = 0 is what is not finite (masked) and x = (q - 1) / 254 for the rest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..core.checkpoints.tensors import TensorFile, flat_bytes, plain
from ..core.errors import UserError, need

Array = npt.NDArray[Any]
KINDS = {"f32": 4, "f16": 2, "u8": 1}
MOST_CELLS = 1 << 27  # of a value that is made whole, to be pooled


class TracePart:
    """The part of a trace at an address: what it is called, its sides and their names, before
    anything is computed."""

    def __init__(self, trace: Any, address: str) -> None:
        self.trace = trace
        self.value, index = trace.parse(address)
        self.name = self.value.address
        shape, axes = trace.shape(self.name)
        if not index:
            index = (0,) * (self.value.batch or axes[:1] == ("row",))
        self.index: list[int | slice] = [*index, *[slice(None)] * (len(shape) - len(index))]
        ranges = {
            at: range(*place.indices(shape[at]))
            for at, place in enumerate(self.index)
            if isinstance(place, slice)
        }
        self.axes = [axes[at] for at in ranges]
        self.shape = [len(places) for places in ranges.values()]
        need(0 not in self.shape, f"{address} is empty; give a range with at least one index.")
        op = trace.plan.get(self.name)
        is_by_head = op is not None and op.quadratic and self.axes[:1] == ["H"]
        # the number of the axis, and its heads, where it is made a head at a time
        self.heads = next(iter(ranges.items())) if is_by_head else None

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    def to_array(self, pool: tuple[int, ...] | None = None) -> Array:
        """Its numbers as float32, the last sides pooled to ``pool``; head by head what grows with T
        x S."""
        if self.heads is None:
            need(
                self.cells <= MOST_CELLS,
                f"{self.name} takes {self.cells * 4 >> 20:,} MiB whole; ask for some rows of it.",
            )
            return self._pooled(self.index, pool)
        axis, heads = self.heads
        before = self.index[:axis]
        after = self.index[axis + 1 :]
        return np.stack([self._pooled([*before, head, *after], pool) for head in heads])

    def _pooled(self, index: list[int | slice], pool: tuple[int, ...] | None) -> Array:
        numbers = self.trace.numbers(self.value, tuple(index))
        array: Array = numbers.detach().float().cpu().numpy()
        return array if pool is None else pooled(array, pool)


def pooled(values: Array, sizes: tuple[int, ...]) -> Array:
    """The last sides of ``values`` cut into at most ``sizes`` tiles each; of a tile what is
    furthest from zero.

    Tile i of n over a side of s begins at floor(i s / n). Of numbers equally far the positive; an
    infinite one stands only where its tile has no other, and NaN wherever its tile has one.
    """
    sizes = sizes[-values.ndim :]
    if all(size >= side for size, side in zip(sizes, values.shape[-len(sizes) :], strict=True)):
        return values
    finite = np.isfinite(values)
    wrong = np.isnan(values)
    high = np.where(finite, values, -np.inf)
    low = high if finite.all() and values.min() >= 0 else np.where(finite, values, np.inf)
    any_wrong = bool(wrong.any())
    for axis, size in zip(range(-1, -len(sizes) - 1, -1), reversed(sizes), strict=True):
        starts = _starts(values.shape[axis], size)
        wrong = np.logical_or.reduceat(wrong, starts, axis=axis) if any_wrong else wrong
        constant = low is high
        high = np.maximum.reduceat(high, starts, axis=axis)
        low = high if constant else np.minimum.reduceat(low, starts, axis=axis)
    chosen = high if low is high else np.where(high >= -low, high, low)
    empty = high == -np.inf  # nothing finite in the tile
    chosen = np.where(empty, np.float32(-np.inf), chosen)
    return (np.where(wrong, np.float32(np.nan), chosen) if any_wrong else chosen).astype(np.float32)


def _starts(side: int, tiles: int) -> Array:
    tiles = min(side, tiles)
    return np.arange(tiles) * side // tiles


def coded(
    values: Array, kind: str = "f32", shape: str = "lin", span: tuple[float, float] | None = None
) -> tuple[Array, dict[str, str]]:
    """``values`` in ``kind`` (f32, f16, u8) and what a reader needs to know of it; ``span`` fixes
    the range of u8."""
    finite = np.isfinite(values)
    finite_values = values[finite]
    low, high = (
        (float(finite_values.min()), float(finite_values.max()))
        if finite_values.size
        else (0.0, 0.0)
    )
    too_wide = kind == "f16" and max(abs(low), abs(high)) > 65_504
    # a byte has one code for what is not finite: that a mask hides it
    if too_wide or (kind == "u8" and np.isnan(values).any()):
        kind = "f32"
    low, high = (span if kind == "u8" else None) or (low, high)
    header = {"min": repr(low), "max": repr(high), "map": "lin", "as": kind, "hole": "0"}
    if kind != "u8":
        return values.astype(np.float16 if kind == "f16" else np.float32), header
    share = (
        (np.where(finite, values, low) - low) / (high - low)
        if high > low
        else np.zeros_like(values)
    )
    share = np.clip(share, 0, 1)
    share = np.sqrt(share) if shape == "sqrt" else share
    holes = not finite.all()
    codes = np.rint(share * 254) + 1 if holes else np.rint(share * 255)
    header |= {"map": shape, "hole": "1" if holes else "0"}
    return np.where(finite, codes, 0).astype(np.uint8), header


def packed(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """safetensors: the header, then raw little-endian bytes; wide numbers first, so that each
    begins at its own size.

    Equal values give equal bytes, which the library's writer does not promise of the metadata.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    pieces = list(plain({name: torch.from_numpy(array.copy()) for name, array in ordered}))
    header = TensorFile(pieces, metadata).header
    return b"".join([header, *(flat_bytes(piece.make()) for piece in pieces)])


def facts(tensor_part: TracePart, pool: tuple[int, ...] | None) -> dict[str, str]:
    """Metadata that a reader of a tensor needs."""
    pooling = "" if pool is None else "max:" + "x".join(map(str, pool))
    return {
        "address": tensor_part.name,
        "shape": json.dumps(tensor_part.shape),
        "axes": json.dumps(tensor_part.axes),
        "pool": pooling,
    }


def pool_of(spec: str | None) -> tuple[int, ...] | None:
    """``max:48x48`` as sizes; UserError for anything else."""
    if not spec:
        return None
    form = re.fullmatch("max:([0-9]{1,5})(?:x([0-9]{1,5}))?", spec)
    sizes = tuple(map(int, filter(None, form.groups()))) if form else (0,)
    if 0 in sizes:
        raise UserError(f'"{spec}" is not a pooling; give pool=max:48x48.')
    return sizes

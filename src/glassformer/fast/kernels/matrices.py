"""Matrices in the order that the kernels read, and rows times them.

A matrix lies in panels of 16 outputs, of each some inputs at a time. A vector register holds 16
outputs; what a step multiplies lies together, so that a panel is read from its first byte to its
last. ``step`` is how many inputs one instruction takes: 4 of int8, 2 of bf16, 1 of fp32. Outputs
are padded to a multiple of 16 and inputs to one of the group (or of ``step``), with zeros.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import reference
from .shared_library import function, in_large_pages, path

GROUP = 32  # inputs that share a scale
PANEL = 16  # outputs that are computed together
STEP = {"int8": 4, "int4": 4, "bf16": 2, "fp32": 1}
OFFSET = {"int8": 128, "int4": 8}  # added, so that weights are unsigned: what vpdpbusd multiplies
FLOATS = {"bf16": torch.bfloat16, "fp32": torch.float32}  # dtypes of rows by a matrix's kind
ALONE = 1 << 18  # multiplications that one thread ends before another has woken up
MAX_ROWS = 512  # rows of a call
AT_ONCE = 1 << 22  # results of whole numbers that torch's path holds at a time


@dataclass(frozen=True)
class Packed:
    """A matrix (N, C): ``data`` in panels, or as it lies where ``build`` is "torch"; ``scales`` in
    fp16, of int8, int4.

    ``outputs`` is N, ``inputs`` C.
    """

    kind: str
    outputs: int
    inputs: int
    data: Tensor
    scales: Tensor | None
    build: str

    def __post_init__(self) -> None:
        if self.build != "torch":
            function(f"matmul_{self.kind}", self.build)  # looked up before it is in a hurry

    @cached_property
    def multiply(self) -> Any:
        """The C function that multiplies with it."""
        return function(f"matmul_{self.kind}", self.build)

    @property
    def nbytes(self) -> int:
        """Bytes read for one row."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @property
    def groups(self) -> int:
        """Number of scales an output has."""
        return -(-self.inputs // GROUP)

    def integers(self) -> tuple[Tensor, Tensor]:
        """The weights (N, C) int8 and scales (N, groups) fp32 of int8 and int4."""
        assert self.scales is not None
        if self.build == "torch":
            return self.data, self.scales.float()
        data = self.data
        if self.kind == "int4":
            data = torch.cat([data & 15, data >> 4], 2)
        wide = data.shape[1] * GROUP
        matrix = (
            _unpaneled(data.reshape(len(data), wide // 4, PANEL, 4)).to(torch.int16)
            - OFFSET[self.kind]
        )
        scales = self.scales.transpose(1, 2).reshape(-1, self.groups).float()
        return matrix[: self.outputs, : self.inputs].to(torch.int8), scales[: self.outputs]

    def matrix(self) -> Tensor:
        """The matrix (N, C) as it is multiplied: fp32, of bf16 in bf16."""
        if self.scales is not None:
            weight, scales = self.integers()
            return weight.float() * scales.repeat_interleave(GROUP, 1)[:, : self.inputs]
        if self.build == "torch":
            return self.data
        return _unpaneled(self.data)[: self.outputs, : self.inputs]


def pack_int8(weight: Tensor, scales: Tensor) -> Packed:
    """weight (N, C) int8 and its scales (N, C / 32), which are rounded to fp16: the number is
    weight * scale."""
    return _pack_integers("int8", weight, scales)


def pack_int4(weight: Tensor, scales: Tensor) -> Packed:
    """weight (N, C) int8 with values from -8 to 7, and its scales (N, C / 32) as for int8: 4.5 bits
    a weight."""
    return _pack_integers("int4", weight, scales)


def pack_bf16(weight: Tensor, transient: bool = False) -> Packed:
    """weight (N, C), rounded to bf16; ``transient``: for one product, in ordinary memory."""
    return _pack_floats("bf16", weight.detach().to(torch.bfloat16), transient)


def pack_fp32(weight: Tensor, transient: bool = False) -> Packed:
    """weight (N, C), in fp32; ``transient`` as ``pack_bf16``."""
    return _pack_floats("fp32", weight.detach().to(torch.float32), transient)


def _pack_integers(kind: str, weight: Tensor, scales: Tensor) -> Packed:
    outputs, inputs = weight.shape
    groups = -(-inputs // GROUP)
    half = scales.detach().to(torch.float16)
    if weight.dtype != torch.int8 or scales.shape != (outputs, groups):
        raise ValueError(
            f"weight {tuple(weight.shape)} must be int8 with scales {(outputs, groups)}"
        )
    if not half.isfinite().all():
        raise ValueError("a scale does not fit in fp16, whose greatest number is 65,504")
    low, high = (-8, 7) if kind == "int4" else (-128, 127)
    if kind == "int4" and weight.numel() and (weight.min() < low or weight.max() > high):
        raise ValueError("weights of 4 bits lie from -8 to 7")
    if path() == "torch":
        return Packed(kind, outputs, inputs, weight, half, "torch")
    unsigned = F.pad(weight, (0, -inputs % GROUP)).view(torch.uint8) + OFFSET[kind]  # wraps round
    data = _paneled(unsigned, 4).reshape(-1, groups, 8, PANEL, 4)
    if kind == "int4":
        data = data[:, :, :4] | (data[:, :, 4:] << 4)
    return Packed(
        kind,
        outputs,
        inputs,
        in_large_pages(data),
        in_large_pages(_paneled(half, 1).squeeze(-1)),
        path(),
    )


def _pack_floats(kind: str, weight: Tensor, transient: bool) -> Packed:
    outputs, inputs = weight.shape
    if path() == "torch":
        return Packed(kind, outputs, inputs, weight, None, "torch")
    if inputs % STEP[kind]:
        weight = F.pad(weight, (0, 1))
    # what a step multiplies is copied as one word of 32 bits
    panels = _paneled(weight.contiguous().view(torch.int32), 1)
    data = (panels.contiguous() if transient else in_large_pages(panels)).view(weight.dtype)
    return Packed(kind, outputs, inputs, data, None, path())


def _paneled(matrix: Tensor, step: int) -> Tensor:
    """(N, C) -> (N / 16, C / step, 16, step)."""
    if missing := -len(matrix) % PANEL:  # F.pad copies, whatever is missing
        matrix = F.pad(matrix, (0, 0, 0, missing))
    return matrix.reshape(-1, PANEL, matrix.shape[1] // step, step).transpose(1, 2)


def _unpaneled(panels: Tensor) -> Tensor:
    """(N / 16, C / step, 16, step) -> (N, C)."""
    return panels.transpose(1, 2).reshape(len(panels) * PANEL, -1)


def matmul(x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """x (..., C) fp32 or bf16 times the matrix (N, C), plus bias (N,) -> (..., N) in the dtype of
    x; no gradients.

    int8 and int4 round x to whole numbers, one scale for each 32 inputs of a row; bf16 rounds x to
    bf16. Sums are in fp32 (of whole numbers in int32) and rounded at the end.
    """
    if x.shape[-1] != packed.inputs:
        raise ValueError(f"rows of {x.shape[-1]} numbers for a matrix of {packed.inputs} inputs")
    rows = x.detach().reshape(-1, packed.inputs)
    y = (_torch_product if packed.build == "torch" else _compiled_product)(rows, packed, bias)
    return y.to(x.dtype).view(*x.shape[:-1], packed.outputs)


def _compiled_product(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    of_integers = rows.dtype if rows.dtype in FLOATS.values() else torch.float32
    rows = rows.to(FLOATS.get(packed.kind, of_integers))
    if packed.scales is None and packed.inputs % STEP[packed.kind]:
        rows = F.pad(rows, (0, 1))
    rows = rows.contiguous()
    y = rows.new_empty(len(rows), packed.outputs)
    added = None if bias is None else bias.detach().float().contiguous()
    matrix, flags = [packed.data.data_ptr()], list[bool]()
    if packed.scales is not None:
        matrix.append(packed.scales.data_ptr())
        flags = [rows.dtype == torch.bfloat16]
    matrix.append(0 if added is None else added.data_ptr())
    # bits do not depend on it
    small = len(rows) * packed.inputs * packed.outputs < ALONE
    threads = 1 if small else torch.get_num_threads()
    for first in range(0, len(rows), MAX_ROWS):
        row_chunk, y_chunk = rows[first : first + MAX_ROWS], y[first : first + MAX_ROWS]
        size = (
            row_chunk.nbytes
            if packed.scales is None
            else len(row_chunk) * packed.groups * (GROUP + 8)
        )
        sizes = (len(row_chunk), rows.shape[1], packed.outputs)
        packed.multiply(
            row_chunk.data_ptr(),
            *matrix,
            y_chunk.data_ptr(),
            scratch(size).data_ptr(),
            *sizes,
            *flags,
            threads,
        )
    return y


_scratch = threading.local()


def scratch(size: int) -> Tensor:
    """Memory that a call may write to, kept for the thread's next: fresh memory costs more than the
    copy into it."""
    if size > getattr(_scratch, "size", -1):
        _scratch.memory, _scratch.size = torch.empty(size, dtype=torch.uint8), size
    return _scratch.memory  # type: ignore[no-any-return]


def _torch_product(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    if packed.scales is None:
        matrix = packed.matrix()
        return F.linear(
            rows.to(matrix.dtype), matrix, None if bias is None else bias.to(matrix.dtype)
        )
    weight, scales = packed.integers()
    step = max(16, AT_ONCE // max(len(rows), 1))
    biases: Sequence[Tensor | None] = (
        [None] * -(-len(weight) // step) if bias is None else torch.split(bias, step)
    )
    cut = zip(torch.split(weight, step), torch.split(scales, step), biases, strict=True)
    blocks = [reference.integer_product(rows, w, s, b) for w, s, b in cut]
    return torch.cat(blocks, 1) if blocks else rows.new_zeros(len(rows), 0, dtype=torch.float32)

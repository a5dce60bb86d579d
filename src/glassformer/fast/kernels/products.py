"""Rows times a packed matrix."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from . import reference
from .weights import GROUP, STEP, Packed

FLOATS = {"bf16": torch.bfloat16, "fp32": torch.float32}  # dtypes of rows by a matrix's kind
ALONE = 1 << 18  # multiplications that one thread ends before another has woken up
MAX_ROWS = 512  # rows of a call
AT_ONCE = 1 << 22  # results of whole numbers that torch's path holds at a time


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

"""Rows times a packed matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from . import reference
from .weights import GROUP, STEP, Packed

AT_ONCE = 1 << 22  # results of whole numbers that torch's path holds at a time


def matmul(x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """x (..., C) fp32 or bf16 times the matrix (N, C), plus bias (N,) -> (..., N) in the dtype of x; no gradients.

    int8 and int4 round x to whole numbers, one scale for each 32 inputs of a row; bf16 rounds x to bf16. Sums are in
    fp32 (of whole numbers in int32) and rounded at the end.
    """
    if x.shape[-1] != packed.inputs:
        raise ValueError(f"rows of {x.shape[-1]} numbers for a matrix of {packed.inputs} inputs")
    rows = x.detach().reshape(-1, packed.inputs)
    y = (_torch_product if packed.build == "torch" else _compiled_product)(rows, packed, bias)
    return y.to(x.dtype).view(*x.shape[:-1], packed.outputs)


def _compiled_product(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    threads, (count, inputs) = torch.get_num_threads(), rows.shape
    added = None if bias is None else bias.detach().float().contiguous()
    address = added if added is None else added.data_ptr()
    if packed.scales is None:
        step = STEP[packed.kind]
        rows = rows.to(packed.data.dtype)
        rows = (F.pad(rows, (0, 1)) if inputs % step else rows).contiguous()
        y = rows.new_empty(count, packed.outputs)
        sizes = (count, rows.shape[1], packed.outputs)
        packed.multiply(rows.data_ptr(), packed.data.data_ptr(), address, y.data_ptr(), *sizes, threads)
        return y
    if rows.dtype not in (torch.float32, torch.bfloat16):
        rows = rows.float()
    rows = rows.contiguous()
    y = rows.new_empty(count, packed.outputs)
    scratch = torch.empty(count * packed.groups * (GROUP + 8), dtype=torch.uint8)
    where = (rows.data_ptr(), packed.data.data_ptr(), packed.scales.data_ptr(), address, y.data_ptr())
    bf16 = rows.dtype == torch.bfloat16
    packed.multiply(*where, scratch.data_ptr(), count, inputs, packed.outputs, bf16, threads)
    return y


def _torch_product(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    if packed.scales is None:
        matrix = packed.matrix()
        return F.linear(rows.to(matrix.dtype), matrix, None if bias is None else bias.to(matrix.dtype))
    weight, scales = packed.integers()
    step = max(16, AT_ONCE // max(len(rows), 1))
    biases: Sequence[Tensor | None] = [None] * -(-len(weight) // step) if bias is None else torch.split(bias, step)
    cut = zip(torch.split(weight, step), torch.split(scales, step), biases, strict=True)
    parts = [reference.integer_product(rows, w, s, b) for w, s, b in cut]
    return torch.cat(parts, 1) if parts else rows.new_zeros(len(rows), 0, dtype=torch.float32)

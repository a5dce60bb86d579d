"""Matrices in the order that the kernels read: panels of 16 outputs, of each some inputs at a time.

A vector register holds 16 outputs; what a step multiplies lies together, so that a panel is read
from its first byte to its last. ``step`` is how many inputs one instruction takes: 4 of int8, 2 of
bf16, 1 of fp32. Outputs are padded to a multiple of 16 and inputs to one of the group (or of
``step``), with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .library import function, in_large_pages, path

GROUP = 32  # inputs that share a scale
PANEL = 16  # outputs that are computed together
STEP = {"int8": 4, "int4": 4, "bf16": 2, "fp32": 1}
OFFSET = {"int8": 128, "int4": 8}  # added, so that weights are unsigned: what vpdpbusd multiplies


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


def pack_bf16(weight: Tensor) -> Packed:
    """weight (N, C), rounded to bf16."""
    return _pack_floats("bf16", weight.detach().to(torch.bfloat16))


def pack_fp32(weight: Tensor) -> Packed:
    """weight (N, C), in fp32."""
    return _pack_floats("fp32", weight.detach().to(torch.float32))


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
    unsigned = (F.pad(weight, (0, -inputs % GROUP)).to(torch.int16) + OFFSET[kind]).to(torch.uint8)
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


def _pack_floats(kind: str, weight: Tensor) -> Packed:
    outputs, inputs = weight.shape
    if path() == "torch":
        return Packed(kind, outputs, inputs, weight, None, "torch")
    step = STEP[kind]
    data = in_large_pages(_paneled(F.pad(weight, (0, -inputs % step)), step))
    return Packed(kind, outputs, inputs, data, None, path())


def _paneled(matrix: Tensor, step: int) -> Tensor:
    """(N, C) -> (N / 16, C / step, 16, step)."""
    padded = F.pad(matrix, (0, 0, 0, -len(matrix) % PANEL))
    return padded.reshape(-1, PANEL, matrix.shape[1] // step, step).transpose(1, 2)


def _unpaneled(panels: Tensor) -> Tensor:
    """(N / 16, C / step, 16, step) -> (N, C)."""
    return panels.transpose(1, 2).reshape(len(panels) * PANEL, -1)

"""Matrices laid out for the processor: a second copy, in oneDNN's blocked order, that kernels read straight through.

A row of numbers times a matrix costs what it costs to fetch the matrix. On x86 the kernels that take a matrix as it
lies fetch at about half of what the memory gives (bf16), or compute at half of what the cores can (fp32). The copies
are as large as the matrices. They are used within ``packed()`` alone, and never once a weight has changed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 32  # the batch that the layout is chosen for; any from 2 to thousands gives the same one

_used: ContextVar[bool] = ContextVar("_used", default=False)


@dataclass(frozen=True)
class Packed:
    """A weight's copy in the blocked order, and what was known of the weight when it was made."""

    matrix: Tensor
    place: tuple[int, int, torch.dtype]
    content: int


def place(weight: Tensor) -> tuple[int, int, torch.dtype]:
    """Where a weight lies and how often it was written to; some fused optimizers do not count."""
    return weight.data_ptr(), weight._version, weight.dtype


def content(weight: Tensor) -> int:
    """The sum of all bits, at the speed of the memory."""
    return int(weight.detach().view(-1).view(torch.int64).sum())


class Linear(nn.Linear):
    """A dense layer y = x W^T (+ b) that reads the packed copy of W where it may."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., C) times the weight (N, C), plus the bias (N): (..., N)."""
    if not torch.compiler.is_compiling():
        held: Packed | None = getattr(weight, "packed", None)
        if held is not None:
            if torch.is_grad_enabled():
                weight.packed = None  # type: ignore[attr-defined]  # a training needs the memory
            elif _used.get() and held.place == place(weight) and x.dtype == weight.dtype and x.numel():
                y: Tensor = torch.ops.mkldnn._linear_pointwise(x, held.matrix, bias, "none", [], "")
                return y
    return F.linear(x, weight, bias)


@contextmanager
def packed(use: bool = True) -> Iterator[None]:
    """Products may use packed copies meanwhile; ``pack`` has just seen to it that they are up to date."""
    before = _used.set(use)
    try:
        yield
    finally:
        _used.reset(before)


def packable(model: nn.Module) -> Iterator[Tensor]:
    """The weights of ``model`` that ``product`` multiplies with, on a processor whose kernels gain by it."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    kinds = {torch.float32, torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}
    found = [module.weight for module in model.modules() if isinstance(module, Linear)]
    head = getattr(model, "head", None)
    if head is not None:
        found.append(head.table(model.embed))
    for weight in found:
        whole = weight.is_contiguous() and weight.nbytes % 8 == 0 and not weight.is_inference()
        if whole and weight.dtype in kinds and weight.device.type == "cpu":
            yield weight


def pack(model: nn.Module, room: int | None) -> None:
    """Give each matrix of ``model`` an up-to-date copy, unless together the new ones take more than ``room`` bytes."""
    stale = []
    for weight in packable(model):
        held: Packed | None = getattr(weight, "packed", None)
        if held is None or held.place != place(weight) or held.content != content(weight):
            weight.packed = None  # type: ignore[attr-defined]
            stale.append(weight)
    if room is None or sum(weight.nbytes for weight in stale) <= room:
        for weight in stale:
            matrix = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
            weight.packed = Packed(matrix, place(weight), content(weight))  # type: ignore[attr-defined]


def unpack(model: nn.Module) -> None:
    """Let go of every packed copy."""
    for weight in packable(model):
        weight.packed = None  # type: ignore[attr-defined]

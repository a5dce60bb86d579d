"""Matrices laid out for the processor: a second copy, in oneDNN's blocked order, that kernels read straight through.

A row of numbers times a matrix costs what it costs to fetch the matrix. On x86 the kernels that take a matrix as it
lies fetch at about half of what the memory gives (bf16), or compute at half of what the cores can (fp32). The copies
are as large as the matrices. They are used within ``packed()`` alone, and never once a weight has changed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Group: TypeAlias = tuple[Tensor, ...]  # weights that are multiplied with the same x
Place: TypeAlias = tuple[int, int, torch.dtype]
ROWS = 32  # the batch that the layout is chosen for; any from 2 to thousands gives the same one

_used: ContextVar[bool] = ContextVar("_used", default=False)


@dataclass(frozen=True)
class Packed:
    """The copy in the blocked order of one weight or of several under each other, and what was known of them."""

    matrix: Tensor
    rows: list[int]
    places: tuple[Place, ...]
    content: int


def place(weight: Tensor) -> Place:
    """Where a weight lies and how often it was written to; some fused optimizers do not count."""
    return weight.data_ptr(), weight._version, weight.dtype


def content(weights: Group) -> int:
    """The sum of all bits, at the speed of the memory."""
    return sum(int(weight.detach().view(-1).view(torch.int64).sum()) for weight in weights)


class Linear(nn.Linear):
    """A dense layer y = x W^T (+ b) that reads the packed copy of W where it may; ``config.Init`` draws it."""

    beside = False  # whether it makes more of x than W does: then the matrix alone is not read

    def reset_parameters(self) -> None:
        """Nothing: drawing twice would take time."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., C) times the weight (N, C), plus the bias (N): (..., N)."""
    held = usable(x, (weight,))
    if held is None:
        return F.linear(x, weight, bias)
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, held.matrix, bias, "none", [], "")
    return y


def together(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """What each of the layers makes of x, in one product where they were packed under each other."""
    held = usable(x, tuple([layer.weight for layer in layers]))
    if held is None:
        return [layer(x) for layer in layers]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, held.matrix, bias, "none", [], "")
    return torch.split(y, held.rows, -1)


def usable(x: Tensor, weights: Group) -> Packed | None:
    """The packed copy of these weights, when it may stand for them."""
    if torch.compiler.is_compiling():
        return None
    held: Packed | None = getattr(weights[0], "packed", None)
    if held is None:
        return None
    if torch.is_grad_enabled():
        weights[0].packed = None  # type: ignore[attr-defined]  # a training needs the memory
        return None
    same = held.places == tuple([place(weight) for weight in weights])
    return held if same and _used.get() and x.dtype == weights[0].dtype and x.numel() else None


@contextmanager
def packed(use: bool = True) -> Iterator[None]:
    """Products may use packed copies meanwhile; ``pack`` has just seen to it that they are up to date."""
    before = _used.set(use)
    try:
        yield
    finally:
        _used.reset(before)


def packable(model: nn.Module) -> Iterator[Group]:
    """The weights of ``model`` that products read, on a processor whose kernels gain by it; joined ones together."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    kinds = {torch.float32, torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}
    joined = [[getattr(module, name) for name in getattr(module, "joined", ())] for module in model.modules()]
    members = {layer for layers in joined for layer in layers}
    alone = [[module] for module in model.modules() if isinstance(module, Linear) and module not in members]
    pure = [layers for layers in joined + alone if layers and not any(layer.beside for layer in layers)]
    found: list[Group] = [tuple(layer.weight for layer in layers) for layers in pure]
    head = getattr(model, "head", None)
    if head is not None:
        found.append((head.table(model.embed),))
    for group in found:
        whole = all(weight.is_contiguous() and weight.nbytes % 8 == 0 and not weight.is_inference() for weight in group)
        if whole and group[0].dtype in kinds and group[0].device.type == "cpu":
            yield group


def pack(model: nn.Module, room: int | None) -> None:
    """Give the matrices of ``model`` up-to-date copies, unless together the new ones take more than ``room`` bytes."""
    stale = []
    for group in packable(model):
        held: Packed | None = getattr(group[0], "packed", None)
        places = tuple([place(weight) for weight in group])
        if held is None or held.places != places or held.content != content(group):
            group[0].packed = None  # type: ignore[attr-defined]
            stale.append(group)
    if room is None or sum(weight.nbytes for group in stale for weight in group) <= room:
        for group in stale:
            whole = (group[0] if len(group) == 1 else torch.cat(group)).detach()
            matrix = torch.ops.mkldnn._reorder_linear_weight(whole, ROWS)
            rows = [weight.shape[0] for weight in group]
            held = Packed(matrix, rows, tuple([place(weight) for weight in group]), content(group))
            group[0].packed = held  # type: ignore[attr-defined]


def unpack(model: nn.Module) -> None:
    """Let go of every packed copy."""
    for group in packable(model):
        group[0].packed = None  # type: ignore[attr-defined]

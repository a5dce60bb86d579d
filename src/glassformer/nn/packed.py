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
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Group: TypeAlias = tuple[nn.Module, ...]  # layers that multiply the same x
Place: TypeAlias = tuple[int, int, torch.dtype]
ROWS = 32  # the batch that the layout is chosen for; any from 2 to thousands gives the same one


@dataclass(frozen=True)
class Packed:
    """The weights of a group under each other in the blocked order, their biases, and what was known of them."""

    matrix: Tensor
    bias: Tensor | None
    rows: list[int]
    places: list[Place]
    content: int

    @staticmethod
    def of(group: Group) -> Packed:
        """A copy made now."""
        matrix = torch.ops.mkldnn._reorder_linear_weight(join([weight(layer) for layer in group]), ROWS)
        rows = [weight(layer).shape[0] for layer in group]
        return Packed(matrix, biases(group), rows, places(group), content(group))

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., C) times the matrix, plus the bias."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.matrix, bias, "none", [], "")
        return y


def weight(layer: nn.Module) -> Any:
    """Its matrix: a parameter, which may carry a copy as ``packed``."""
    return layer.weight


def join(parts: list[Any]) -> Tensor:
    """One tensor with the rows of all."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).detach()


def biases(group: Group) -> Tensor | None:
    """The biases of the group's products, under each other."""
    parts = [getattr(layer, "bias", None) for layer in group]
    return join(parts) if isinstance(parts[0], Tensor) else None


Copies: TypeAlias = dict[Group, Packed]
NONE: Copies = {}
_used: ContextVar[Copies] = ContextVar("_used", default=NONE)


def places(group: Group) -> list[Place]:
    """Where each weight and bias lies and how often it was written to; some fused optimizers do not count."""
    held = [tensor for layer in group for tensor in layer._parameters.values() if tensor is not None]
    return [(tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in held]


def content(group: Group) -> int:
    """The sum of all bits, at the speed of the memory."""
    return sum(int(weight(layer).detach().view(-1).view(torch.int64).sum()) for layer in group)


class Linear(nn.Linear):
    """A dense layer y = x W^T (+ b) that reads the packed copy of W where it may; ``config.Init`` draws it."""

    beside = False  # whether it makes more of x than W does: then the matrix alone is not read

    def reset_parameters(self) -> None:
        """Nothing: drawing twice would take time."""

    def forward(self, x: Tensor) -> Tensor:
        held = usable(x, (self,))
        return F.linear(x, self.weight, self.bias) if held is None else held(x, self.bias)


def together(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """What each of the layers makes of x, in one product where they were packed under each other."""
    held = usable(x, layers)
    return [layer(x) for layer in layers] if held is None else torch.split(held(x, held.bias), held.rows, -1)


def usable(x: Tensor, group: Group) -> Packed | None:
    """The packed copy of these layers, when it may stand for them."""
    if torch.compiler.is_compiling():
        return None
    if torch.is_grad_enabled():
        if getattr(weight(group[0]), "packed", None) is not None:
            weight(group[0]).packed = None  # a training needs the memory
        return None
    held = _used.get().get(group)
    return held if held is not None and x.dtype == held.matrix.dtype and x.numel() else None


def product(x: Tensor, layer: nn.Module, bias: Tensor | None) -> Tensor:
    """x (..., C) times the weight (N, C) of a layer or a table, plus the bias (N): (..., N)."""
    held = usable(x, (layer,))
    return F.linear(x, weight(layer), bias) if held is None else held(x, bias)


@contextmanager
def packed(copies: Copies) -> Iterator[None]:
    """Products without gradients may use these copies meanwhile, if no weight has changed since ``pack`` made them."""
    before = _used.set(copies if all(held.places == places(group) for group, held in copies.items()) else NONE)
    try:
        yield
    finally:
        _used.reset(before)


def packable(model: nn.Module) -> Iterator[Group]:
    """The layers of ``model`` that multiply, on a processor whose kernels gain by copies; joined ones together."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    kinds = {torch.float32, torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}
    joined = [tuple(getattr(module, name) for name in getattr(module, "joined", ())) for module in model.modules()]
    members = {layer for layers in joined for layer in layers}
    alone = [(module,) for module in model.modules() if isinstance(module, Linear) and module not in members]
    head = getattr(model, "head", None)
    ends = [] if head is None else [(head.holder(model.embed),)]
    pure = [layers for layers in joined + alone if layers and not any(layer.beside for layer in layers)]
    for group in pure + ends:
        weights = [weight(layer) for layer in group if "weight" in layer._parameters]  # not one computed anew each time
        whole = len(weights) == len(group) and all(
            matrix.is_contiguous() and matrix.nbytes % 8 == 0 and not matrix.is_inference() for matrix in weights
        )
        if whole and weights[0].dtype in kinds and weights[0].device.type == "cpu":
            yield group


def pack(model: nn.Module, room: int | None) -> Copies:
    """Up-to-date copies of the matrices of ``model``; those there are if the new ones take more than ``room`` bytes."""
    kept: Copies = {}
    stale = []
    for group in packable(model):
        held: Packed | None = getattr(weight(group[0]), "packed", None)
        if held is not None and held.places == places(group) and held.content == content(group):
            kept[group] = replace(held, bias=biases(group))  # a bias is small: copied every time
        else:
            weight(group[0]).packed = None
            stale.append(group)
    if room is None or sum(weight(layer).nbytes for group in stale for layer in group) <= room:
        for group in stale:
            kept[group] = weight(group[0]).packed = Packed.of(group)
    return kept


def unpack(model: nn.Module) -> None:
    """Let go of every packed copy."""
    for group in packable(model):
        weight(group[0]).packed = None

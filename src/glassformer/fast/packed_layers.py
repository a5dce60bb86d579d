"""Layers that multiply by a prepacked copy of their weights (prepacked.py makes the copies)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..core.nn.layers import Linear, Projection
from . import kernels
from .quantized import QuantizedWeight

State: TypeAlias = list[tuple[int, int, torch.dtype]]
ROWS = 32  # the batch that the layout is chosen for; any from 2 to thousands gives the same one


def state_of(tensors: list[Tensor]) -> State:
    """Address, version counter and dtype of each tensor."""
    return [(tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in tensors]


@dataclass(frozen=True)
class PackedGroup:
    """The matrices (N, C) and biases (N) of layers that multiply the same x: one copy holds them
    under each other."""

    weights: list[Tensor]
    biases: list[Tensor]

    @property
    def nbytes(self) -> int:
        """The size of the copy of the matrices; that of fp16 is in fp32."""
        return sum(weight.nbytes << (weight.dtype == torch.float16) for weight in self.weights)

    def state(self) -> State:
        """Address and version counter of each tensor; some fused optimizers do not count."""
        return state_of([*self.weights, *self.biases])

    def checksum(self) -> int:
        """The sum of all bits of the matrices, at the speed of the memory."""
        return sum(int(weight.detach().view(-1).view(torch.int64).sum()) for weight in self.weights)

    def bias(self) -> Tensor | None:
        """All biases in one."""
        return _joined(self.biases) if self.biases else None

    def packable(self, kinds: set[torch.dtype]) -> bool:
        """True where a copy can be made: of parameters, not of tensors that are computed in each
        pass."""
        first = self.weights[0]
        return (
            all(
                isinstance(weight, nn.Parameter)
                and weight.is_contiguous()
                and weight.nbytes % 8 == 0
                for weight in self.weights
            )
            and not any(isinstance(weight, QuantizedWeight) for weight in self.weights)
            and len(self.biases) in (0, len(self.weights))
            and first.dtype in kinds
            and first.device.type == "cpu"
            and not first.is_inference()
        )


def _joined(tensors: list[Tensor]) -> Tensor:
    return (tensors[0] if len(tensors) == 1 else torch.cat(tensors)).detach()


@dataclass(frozen=True)
class PackedWeight:
    """The copy for a group, and what is known of the weights that it was made of."""

    matrix: Tensor | kernels.Packed
    bias: Tensor | None
    rows: list[int]  # of each matrix
    group: PackedGroup
    state: State
    checksum: int

    @staticmethod
    def of(group: PackedGroup, exact: bool = False) -> PackedWeight:
        """A copy made now, in oneDNN's order or our kernels' own."""
        joined = _joined(group.weights)
        if exact:
            pack = kernels.pack_bf16 if joined.dtype == torch.bfloat16 else kernels.pack_fp32
            matrix: Tensor | kernels.Packed = pack(joined)
        else:
            matrix = torch.ops.mkldnn._reorder_linear_weight(joined, ROWS)
        rows = [len(weight) for weight in group.weights]
        return PackedWeight(matrix, group.bias(), rows, group, group.state(), group.checksum())

    def usable(self, x: Tensor) -> bool:
        """True where the copy may stand for the weights in a product with x (..., C)."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return x.dtype == self.group.weights[0].dtype and x.numel() > 0

    def product(self, x: Tensor) -> Tensor:
        """x (..., C) times all matrices, plus the biases."""
        if isinstance(self.matrix, kernels.Packed):
            return kernels.matmul(x, self.matrix, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self.matrix, self.bias, "none", [], ""
        )
        return y


class PrepackedLinear(Linear):
    """A linear layer around the parameters of another, read from a copy that others of its group
    may share."""

    def __init__(self, layer: nn.Module, packed: PackedWeight) -> None:
        self.__dict__.update(layer.__dict__)  # its parameters, hooks and sizes
        self.packed = packed

    def forward(self, x: Tensor) -> Tensor:
        alone = len(self.packed.rows) == 1 and self.packed.usable(x)
        return self.packed.product(x) if alone else super().forward(x)

    def joint(self, x: Tensor, layers: Sequence[Linear]) -> Sequence[Tensor]:
        if not self.packed.usable(x):
            return super().joint(x, layers)
        return torch.split(self.packed.product(x), self.packed.rows, -1)


class PrepackedProjection(Projection):
    """The same for the table of the head, its own or the embedding's."""

    def __init__(self, layer: nn.Module, packed: PackedWeight) -> None:
        self.__dict__.update(layer.__dict__)
        self.packed = packed

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.packed.product(x) if self.packed.usable(x) else super().forward(x, table)

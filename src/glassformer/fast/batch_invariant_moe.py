"""Mixtures of experts by the kernels of our own: what a token is answered does not depend on who is
in the row with it.

torch's products sum in another order for another number of rows, and a router's logits that differ
in the last bit may choose another expert. So the router is a copy in fp32, each expert's table a
copy of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..core.nn.attention import Look
from ..core.nn.experts import MoE
from ..core.nn.replace import replace_modules
from . import kernels
from .fused import in_vectors
from .quantized import QuantizedWeight

M = TypeVar("M", bound=nn.Module)
TABLES = ("gate", "up", "down")
REPLACED = ("route", "expert_forward")  # a class that computes these by its own rule keeps them


class BatchInvariantMoE(MoE):
    """A mixture around the parameters of another; quantized tables are exact as they are."""

    def __init__(self, layer: MoE) -> None:
        self.__dict__.update(layer.__dict__)
        self.packed_router = kernels.pack_fp32(layer.router.matrix().detach().float())
        self.act = partial(in_vectors, layer.act)
        self.packed = {name: _packed(getattr(layer, name)) for name in TABLES}

    def route(self, x: Tensor) -> Tensor:
        bias = self.router.bias
        return kernels.matmul(
            x.float(), self.packed_router, None if bias is None else bias.detach().float()
        )

    def expert_forward(self, rows: Tensor, expert_counts: Tensor, look: Look) -> Tensor:
        if not self.packed["up"] or not len(rows):
            return super().expert_forward(rows, expert_counts, look)
        gate = self.grouped_product(rows, "gate", expert_counts) if self.packed["gate"] else None
        return self.grouped_product(
            self.activation(self.grouped_product(rows, "up", expert_counts), gate, look),
            "down",
            expert_counts,
        )

    def grouped_product(self, rows: Tensor, name: str, expert_counts: Tensor) -> Tensor:
        """Rows (P, ..), the first counts[0] of expert 0, the next of expert 1, .., each times its
        own table."""
        bias: Any = getattr(self, f"{name}_bias")
        biases = [None] * len(expert_counts) if bias is None else bias.detach().unbind()
        groups = zip(
            torch.split(rows, expert_counts.tolist()), self.packed[name], biases, strict=True
        )
        return torch.cat([kernels.matmul(*group) for group in groups if len(group[0])])


def _view(layer: MoE) -> BatchInvariantMoE:
    """The mixture with exact products; it chooses and activates as its own class does."""
    kind = type(layer)
    if kind is MoE:
        return BatchInvariantMoE(layer)
    view: BatchInvariantMoE = type(kind.__name__, (BatchInvariantMoE, kind), {})(layer)
    return view


def _packed(table: Tensor | None) -> list[kernels.Packed]:
    """A copy of each expert's own table, in the kernels' order."""
    if table is None or isinstance(table, QuantizedWeight):
        return []
    pack = kernels.pack_bf16 if table.dtype == torch.bfloat16 else kernels.pack_fp32
    return [pack(matrix.contiguous()) for matrix in table.detach()]


def batch_invariant_moe(model: M, room: int | None = None) -> tuple[M, int]:
    """A view of ``model`` whose mixtures are exact, and the bytes of their copies; as it is where
    ``room`` is less."""
    mixtures = [
        module
        for module in model.modules()
        if isinstance(module, MoE)
        and all(getattr(type(module), name) is getattr(MoE, name) for name in REPLACED)
    ]
    tables = [getattr(mixture, name) for mixture in mixtures for name in TABLES]
    nbytes = sum(
        table.nbytes
        for table in tables
        if table is not None and not isinstance(table, QuantizedWeight)
    )
    kinds = {mixture.router.weight.dtype for mixture in mixtures}
    if (
        not mixtures
        or not kinds <= {torch.float32, torch.bfloat16}
        or (room is not None and nbytes > room)
    ):
        return model, 0
    return replace_modules(model, {mixture: _view(mixture) for mixture in mixtures}), nbytes

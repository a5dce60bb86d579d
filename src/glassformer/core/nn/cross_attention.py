"""Attention of a decoder's tokens to an encoder's output: its keys and values, their queries.

B batch, S source tokens, H heads, K key-value heads, D head dim, C model dim.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from .. import config
from .attention import Attention
from .cache import CrossKV
from .flow import Flow
from .mask import Mask
from .position import Position

ALL = config.Full()  # made once: torch.compile has no way to make one


class CrossAttention(Attention):
    """Attention whose keys and values are an encoder's output, all of which each token sees."""

    cross = True
    fused_projections = ()

    def __init__(self, cfg: config.Attention, dim: int, dropout: float) -> None:
        super().__init__(cfg, dim, False, dropout)

    def mix(self, x: Tensor, flow: Flow, position: Position, kv: Any) -> Tensor:
        k, v = self.from_memory(flow, kv)
        q = flow.look(self, "q", self.split(self.q(x), self.q_norm))
        return self.attend(flow, q, k, v, self.cross_mask(flow))

    def from_memory(self, flow: Flow, kv: CrossKV | None) -> tuple[Tensor, Tensor]:
        """The encoder's keys and values (B, K, S, D), from the cache when it has them."""
        assert flow.memory is not None
        make = partial(self.memory_keys, flow.memory.hidden)
        k, v = make() if kv is None else kv.cached(make)
        return flow.look(self, "k", k), flow.look(self, "v", v)

    def memory_keys(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.k(hidden), self.k_norm), self.split(self.v(hidden))

    def cross_mask(self, flow: Flow) -> Mask:
        """Every token may attend to all of the encoder's output but padding."""
        memory, document_ids = flow.memory, None
        assert memory is not None
        if flow.document_ids is not None and memory.document_ids is not None:
            document_ids = (flow.document_ids, memory.document_ids)
        contiguous = memory.contiguous and document_ids is None
        make_mask = partial(Mask, flow.pos, memory.pos, False, ALL, document_ids, contiguous)
        return flow.cached("cross_mask", make_mask)

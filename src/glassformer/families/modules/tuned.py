"""The module of ``TunedAttention``."""

from __future__ import annotations

from torch import Tensor

from ...core.nn.attention import Attention
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ...core.nn.position import Position
from ..mixers import TunedAttention
from .routed import whole_vectors


@builds(TunedAttention)
class TunedAttentionModule(Attention):
    """Attention of queries that grow with position."""

    def __init__(self, cfg: TunedAttention, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.cfg = cfg

    def qkv(self, x: Tensor, flow: Flow, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) -> queries (B, H, T, D), grown by position, keys and values (B, K, T, D)."""
        q, k, v = super().qkv(x, flow, position)
        steps = (flow.pos + 1) // self.cfg.length + 1
        logarithm = whole_vectors(steps[..., None].float()).log()[..., 0]
        growth = 1 + logarithm * self.cfg.strength  # (B or 1, T)
        return q * growth[:, None, :, None].to(q.dtype), k, v

"""The module of ``TunedAttention``."""

from __future__ import annotations

from torch import Tensor

from ...core.nn.attention import Attention
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ...core.nn.position import Position
from ..mixers import TunedAttention
from .routed import whole_vectors
from .scan import ShapedModule


@builds(TunedAttention)
class TunedAttentionModule(ShapedModule, Attention):
    """Attention of queries that grow with position."""

    def qkv(self, x: Tensor, flow: Flow, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) -> queries (B, H, T, D), grown by position, keys and values (B, K, T, D)."""
        q, k, v = super().qkv(x, flow, position)
        steps = (flow.pos + 1) // self.cfg.length + 1
        logarithm = whole_vectors(steps[..., None].float()).log()[..., 0]
        growth = 1 + logarithm * self.cfg.strength  # (B or 1, T)
        return q * growth[:, None, :, None].to(q.dtype), k, v

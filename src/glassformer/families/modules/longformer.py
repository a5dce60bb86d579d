"""The modules of ``LongformerAttention``, ``GlobalTokens`` and ``SideTable``.

B batch, T tokens, N global columns, H heads, D head dim, C model dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.config import Full
from ...core.errors import need
from ...core.nn.additive_position import Learned
from ...core.nn.attention import Attention
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ...core.nn.mask import Mask
from ...core.nn.position import Position
from ..longformer import GlobalTokens, LongformerAttention, SideTable
from .scan import ShapedModule

builds(GlobalTokens)(GlobalTokens.allows)
ALL = Full()


@builds(SideTable)
class SideTableModule(Learned):
    """One trained vector per position of its side."""


@builds(LongformerAttention)
class LongformerAttentionModule(ShapedModule, Attention):
    """Attention within the mask, and of global tokens to every token."""

    def __init__(self, cfg: LongformerAttention, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        need(
            not causal, "LongformerAttention reads both sides; give it a stack with causal = false."
        )
        self.tokens = cfg.global_tokens

    def mix(self, x: Tensor, flow: Flow, position: Position, kv: Any) -> Tensor:
        """x (B, T, C) -> the mixture of values that each head makes for each token (B, H, T, D)."""
        z = super().mix(x, flow, position, kv)
        if self.tokens == 0:
            return z
        is_global = (flow.pos >= 0) & (flow.pos < self.tokens)  # (B or 1, T)
        columns = is_global.any(0).nonzero()[:, 0]  # N
        q = self.split(self.q_global(x[:, columns]))
        k, v = self.split(self.k_global(x)), self.split(self.v_global(x))
        ids = flow.document_ids
        pairs = None if ids is None else (ids[:, columns], ids)
        mask = Mask(flow.pos[:, columns], flow.pos, False, ALL, pairs)
        seen = super().attend(flow, q, k, v, mask, position)  # (B, H, N, D)
        chosen = torch.where(is_global[:, None, columns, None], seen, z[:, :, columns])
        return z.index_copy(2, columns, chosen)

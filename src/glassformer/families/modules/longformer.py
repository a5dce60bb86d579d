"""The modules of ``LongformerAttention``, ``GlobalTokens`` and ``SideTable``.

B batch, T tokens, N global columns, H heads, D head dim, C model dim.
"""

from __future__ import annotations

from functools import partial
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
from ..longformer import GlobalTokens, LongformerAttention, SideTable, count_global
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
        self.part, self.separator = cfg.part, cfg.separator

    def self_mask(self, flow: Flow, kv: Any) -> Mask:
        """Which keys each query sees: those in its window, and the global ones."""
        if self.part is None:
            return super().self_mask(flow, kv)
        return flow.cached((self.mask, self.part), partial(self.part_mask, flow))

    def part_mask(self, flow: Flow) -> Mask:
        """The mask of texts of which a part is global.

        Windows depend on distances alone, so the positions of each text (B, T) are moved, and counted
        from the end for a choice, until its part ends where the longest one's does.
        """
        is_separator: Any = flow.tokens == self.separator
        separators, pos, real = is_separator.cumsum(1), flow.pos, flow.pos >= 0
        inside = separators == 0
        if self.part == "choice":  # behind two separators
            inside, pos = separators - 1 > is_separator, pos.amax(1, keepdim=True) - pos
        counts = (inside & real).sum(1, keepdim=True)
        most = max(int(counts.max()), 1)
        pos, ids = torch.where(real, pos + most - counts, -1), flow.document_ids
        pairs = None if ids is None else (ids, ids)
        near: Any = self.mask
        return Mask(pos, pos, False, near | GlobalTokens(most), pairs)

    def mix(self, x: Tensor, flow: Flow, position: Position, kv: Any) -> Tensor:
        """x (B, T, C) -> the mixture of values that each head makes for each token (B, H, T, D)."""
        z = super().mix(x, flow, position, kv)
        mask = self.self_mask(flow, kv)
        pos, pairs = mask.q_pos, mask.document_ids
        is_global = (pos >= 0) & (pos < count_global(mask.rule))  # (B or 1, T)
        columns = is_global.any(0).nonzero()[:, 0]  # N
        if not len(columns):
            return z
        q = self.split(self.q_global(x[:, columns]))
        k, v = self.split(self.k_global(x)), self.split(self.v_global(x))
        pairs = None if pairs is None else (pairs[0][:, columns], pairs[1])
        mask = Mask(pos[:, columns], pos, False, ALL, pairs)
        seen = super().attend(flow, q, k, v, mask, position)  # (B, H, N, D)
        chosen = torch.where(is_global[:, None, columns, None], seen, z[:, :, columns])
        return z.index_copy(2, columns, chosen)

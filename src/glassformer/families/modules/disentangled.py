"""Attention to content and to distance apart: three products are a score (DeBERTa).

    score(i, j) = q_i k_j + q_i K[i - j] + k_j Q[i - j]     K, Q: projections of distances' vectors

B batch, T queries, S keys, H heads, D head dim, C model dim, R vectors of distances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...core import config
from ...core.errors import need
from ...core.nn.additive_position import Learned
from ...core.nn.attention import Attention
from ...core.nn.build import build, builds
from ...core.nn.dropout import dropout
from ...core.nn.flow import Flow
from ...core.nn.layers import norm
from ...core.nn.mask import Mask
from ...core.nn.position import Position
from ..disentangled import DisentangledAttention, RelativeEmbedding
from .scan import ShapedModule, add_layers


@builds(RelativeEmbedding)
class RelativeEmbeddingModule(Position):
    """The vectors of distances, and which of them a pair of positions takes."""

    tables = ("weight",)

    def __init__(self, cfg: config.Position, width: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, width, heads, causal)
        self.weight = nn.Parameter(torch.empty(2 * self.cfg.buckets, width))
        self.norm = norm(self.cfg.norm, width)
        added = self.cfg.added
        self.added: Learned | None = build(added, width, heads, causal) if added else None

    def embed(self, x: Tensor, flow: Flow) -> Tensor:
        return x if self.added is None else self.added.embed(x, flow)

    def vectors(self) -> Tensor:
        """The vectors (R, C), first those of keys far ahead of their query."""
        return self.norm(self.weight)  # type: ignore[no-any-return]

    def rows(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The row (B or 1, T, S) of each pair: of its query's position less its key's."""
        away = q_pos[:, :, None] - k_pos[:, None]
        buckets: int = self.cfg.buckets
        distance: int | None = self.cfg.distance
        if distance is not None:
            exact = buckets // 2
            far = away.abs().clamp(min=exact).float() / exact
            ratio = far.log() / torch.tensor((distance - 1) / exact).log() * (exact - 1)
            shared = (ratio.ceil().long() + exact) * away.sign()
            away = torch.where(away.abs() <= exact, away, shared)
        return (away + buckets).clamp(0, 2 * buckets - 1)


class Scores(NamedTuple):
    """Scores of distances (B, H, T, S) in a position scheme's place, where engines ask for them."""

    term: Tensor

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The scores of all pairs."""
        return self.term


@builds(DisentangledAttention)
class DisentangledAttentionModule(ShapedModule, Attention):
    """Attention with scores of distances beside those of content."""

    def __init__(self, cfg: DisentangledAttention, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        if not cfg.key_bias:
            del self.k
            add_layers(self, cfg.shapes(dim))

    def attend(
        self,
        flow: Flow,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        position: Position | None = None,
    ) -> Tensor:
        """softmax of all three products, times v -> (B, H, T, D)."""
        need(
            isinstance(position, RelativeEmbeddingModule),
            "DisentangledAttention reads distances; give the stack a RelativeEmbedding position.",
        )
        scores: Any = Scores(self.distances(q, k, mask, position))
        return super().attend(flow, q, k, v, mask, scores)

    def distances(self, q: Tensor, k: Tensor, mask: Mask, position: Any) -> Tensor:
        """Scores (B, H, T, S) of queries and keys with the distances between them."""
        rows = position.rows(mask.q_pos, mask.k_pos)[:, None]
        rows = rows.expand(len(q), q.shape[1], -1, -1)
        vectors = position.vectors()[None]
        if self.training and self.dropout > 0:
            vectors = dropout(vectors, self.dropout)
        terms = []
        if self.cfg.content_to_position:
            keys = self.split((self.k if self.cfg.shared else self.pos_k)(vectors))
            terms.append((q @ keys.mT).gather(-1, rows))
        if self.cfg.position_to_content:
            queries = self.split((self.q if self.cfg.shared else self.pos_q)(vectors))
            terms.append((k @ queries.mT).gather(-1, rows.mT).mT)
        return sum(terms[1:], terms[0]) * self.scale

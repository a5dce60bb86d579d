"""The modules of ``SinkAttention`` and ``ClampedMoE``.

B batch, T queries, S keys, H heads, D head dim, E experts.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.attention import Attention, Look, fold_groups
from ...core.nn.build import builds
from ...core.nn.dropout import dropout
from ...core.nn.experts import MoE
from ...core.nn.flow import Flow
from ...core.nn.layers import linear
from ...core.nn.mask import Mask
from ...core.nn.position import Position
from ..sinks import ClampedMoE, SinkAttention


@builds(SinkAttention)
class SinkAttentionModule(Attention):
    """softmax over the scores of keys and the sink; the sink's share adds no value."""

    def __init__(self, cfg: SinkAttention, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.sinks = nn.Parameter(torch.empty(cfg.heads))

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Draws the sinks as other weights."""
        nn.init.normal_(self.sinks, std=std, generator=generator)

    def attend(
        self,
        flow: Flow,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        position: Position | None = None,
    ) -> Tensor:
        """softmax(q k^T, sink) v -> (B, H, T, D), every score in memory."""
        bias = None if position is None else mask.bias(position)
        if flow.watches(self, "scores", "pattern"):
            flow.keys(mask.k_pos, mask.dense)
        look: Look = partial(flow.look, self)
        qk = (fold_groups(q, k.shape[1]) @ k.transpose(-1, -2)).view(*q.shape[:3], -1)
        scaled = qk * self.scale
        capped = scaled if self.softcap is None else self.softcap * (scaled / self.softcap).tanh()
        biased = capped if bias is None else capped + bias
        scores = look("scores", biased.masked_fill(~mask.dense(), float("-inf")))  # (B, H, T, S)
        sink = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        wide = torch.promote_types(scores.dtype, torch.float32)
        shares = torch.cat((scores, sink), -1).softmax(-1, wide)[..., :-1]
        pattern = look("pattern", shares.to(v.dtype))
        if self.training and self.dropout > 0:
            pattern = dropout(pattern, self.dropout)
        return (fold_groups(pattern, k.shape[1]) @ v).view(*q.shape[:3], -1)


@builds(ClampedMoE)
class ClampedMoEModule(MoE):
    """A mixture of experts with the router and the activation of a ``ClampedMoE``."""

    cfg: ClampedMoE

    def __init__(self, cfg: ClampedMoE, dim: int) -> None:
        super().__init__(cfg, dim)
        self.router = linear(dim, cfg.experts, bias=True)

    def route(self, x: Tensor) -> Tensor:
        """The logits (B, T, E), in fp32 at least."""
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            weight = self.router.matrix().to(wide)
            return F.linear(x.to(wide), weight, self.router.bias.to(wide))

    def activation(self, up: Tensor, gate: Tensor | None, look: Look) -> Tensor:
        """Hidden units (..., H) from the products with ``up`` and ``gate``, recorded by name."""
        assert gate is not None
        limit, alpha = self.cfg.limit, self.cfg.alpha
        clamped = look("pre", gate).clamp(max=limit)
        share = look("gate", self.act(alpha * clamped) / alpha)
        return look("hidden", share * (look("up", up).clamp(-limit, limit) + 1))

"""The modules of ``SinkAttention`` and ``ClampedMoE``.

B batch, T queries, S keys, H heads, D head dim, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.attention import Attention, AttentionInputs, Look, eager_attention
from ...core.nn.build import builds
from ...core.nn.experts import MoE
from ...core.nn.flow import Flow
from ...core.nn.layers import linear
from ...core.nn.mask import Mask
from ...core.nn.position import Position
from ..sinks import ClampedMoE, SinkAttention
from .scan import ShapedModule, in_fp32


@builds(SinkAttention)
class SinkAttentionModule(ShapedModule, Attention):
    """softmax over the scores of keys and the sink; the sink's share adds no value."""

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
        if flow.watches(self, "scores", "pattern"):
            flow.keys(mask.k_pos, mask.dense)
        shares: list[Tensor] = []  # that the sinks leave to the keys

        def look(name: str, x: Tensor) -> Tensor:
            if name == "pattern":
                return flow.look(self, name, x * shares[0].to(x.dtype))
            x = flow.look(self, name, x)
            sums = in_fp32(x).logsumexp(-1, keepdim=True)
            shares.append((sums - in_fp32(self.sinks)[:, None, None]).sigmoid())
            return x

        return eager_attention(
            AttentionInputs(
                q,
                k,
                v,
                mask,
                None if position is None else mask.bias(position),
                self.scale,
                self.softcap,
                self.dropout if self.training else 0.0,
                look,
            )
        )


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
            weight, bias = self.router.matrix(), self.router.bias
            return F.linear(*map(in_fp32, (x, weight, bias)))

    def activation(self, up: Tensor, gate: Tensor | None, look: Look) -> Tensor:
        """Hidden units (..., H) from the products with ``up`` and ``gate``, recorded by name."""
        assert gate is not None
        limit, alpha = self.cfg.limit, self.cfg.alpha
        clamped = look("pre", gate).clamp(max=limit)
        share = look("gate", self.act(alpha * clamped) / alpha)
        return look("hidden", share * (look("up", up).clamp(-limit, limit) + 1))

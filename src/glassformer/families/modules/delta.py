"""Qwen3-Next's mixers: a gated delta net, and attention with a gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.attention import Attention
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ...core.nn.layers import fused_linear
from ..mixers import GatedAttention, GatedDelta
from .scan import (
    GatedNorm,
    ScanMixer,
    ShapedModule,
    States,
    by_head,
    in_fp32,
    scan,
    split_heads,
)


@builds(GatedDelta)
class GatedDeltaModule(ScanMixer):
    """Project, convolve, learn and read the state, norm, gate, project back.

    ``learn`` and ``fade`` say how fast the state of a value head learns and fades.
    """

    fused_projections = ("in_q", "in_k", "in_v", "in_gate", "learn", "fade")

    def __init__(self, cfg: GatedDelta, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.norm = GatedNorm(cfg.value_dim, cfg.eps)

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        cfg = self.cfg
        last, hidden = before or (None, None)
        share = cfg.value_heads // cfg.key_heads
        layers = [getattr(self, name) for name in self.fused_projections]
        q, k, v, gate, learn, fade = fused_linear(x, *layers)
        mixed, last = self.conv(torch.cat((q, k, v), -1), flow, last)
        sizes = [q.shape[-1], k.shape[-1], v.shape[-1]]
        q, k, v = torch.split(in_fp32(F.silu(mixed)), sizes, -1)
        q, k = (unit(by_head(x, cfg.key_heads)).repeat_interleave(share, 1) for x in (q, k))
        v, decay = by_head(v, cfg.value_heads), self.decays(self.steps(fade))
        learned = in_fp32(learn).sigmoid().transpose(1, 2)[..., None]
        output, hidden = scan(q * cfg.key_dim**-0.5, learned * k, v, decay, flow, hidden, k)
        gate = split_heads(gate, cfg.value_heads)
        gated = self.norm(output.transpose(1, 2), gate).flatten(2)
        return self.out_proj(gated.to(x.dtype)), (last, hidden)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Decays between 0.01 and 16 a step."""
        decays = torch.rand(self.cfg.value_heads, generator=generator) * 15.99 + 0.01
        self.A_log.copy_(decays.log())
        nn.init.ones_(self.dt_bias)


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


@builds(GatedAttention)
class GatedAttentionModule(ShapedModule, Attention):
    """out(z * sigmoid(gate(x)))."""

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """The mixture z (B, H, T, D), gated by each token of x (B, T, C)."""
        return z * self.split(self.gate(x).sigmoid())

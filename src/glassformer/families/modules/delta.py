"""Qwen3-Next's mixers: a gated delta net, and attention with a gate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import need
from ...core.nn.attention import Attention
from ...core.nn.build import builds
from ...core.nn.cache import ExternalKV, MixerState
from ...core.nn.flow import Flow, TracedModule
from ...core.nn.layers import fused_linear, linear
from ...core.nn.position import Position
from ..mixers import GatedAttention, GatedDelta
from .scan import CausalConv, scan, split_heads, states_of


class NormThenGate(nn.Module):
    """RMSNorm of each head, times silu(gate)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        unit = F.rms_norm(x, x.shape[-1:], None, self.eps)
        return self.weight * unit * F.silu(gate.to(x.dtype))

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        nn.init.ones_(self.weight)


@builds(GatedDelta)
class GatedDeltaModule(TracedModule):
    """Project, convolve, learn and read the state, norm, gate, project back.

    ``learn`` and ``fade`` say how fast the state of a value head learns and fades.
    """

    fused_projections = ("in_q", "in_k", "in_v", "in_gate", "learn", "fade")
    writes = ("out_proj.weight",)

    def __init__(self, cfg: GatedDelta, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        need(causal, "GatedDelta reads from left to right; give it a causal stack.")
        self.cfg = cfg
        self.A_log = nn.Parameter(torch.empty(cfg.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(cfg.value_heads))
        keys, inner = cfg.key_heads * cfg.key_dim, cfg.inner
        self.in_q, self.in_k = linear(dim, keys, bias=False), linear(dim, keys, bias=False)
        self.in_v, self.in_gate = linear(dim, inner, bias=False), linear(dim, inner, bias=False)
        self.learn = linear(dim, cfg.value_heads, bias=False)
        self.fade = linear(dim, cfg.value_heads, bias=False)
        self.conv = CausalConv(cfg.channels, cfg.kernel, bias=False)
        self.norm = NormThenGate(cfg.value_dim, cfg.eps)
        self.out_proj = linear(cfg.inner, dim, bias=False)

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C)."""
        cfg, wide = self.cfg, torch.promote_types(x.dtype, torch.float32)
        x = flow.look(self, "in", x)
        share = cfg.value_heads // cfg.key_heads
        layers = [getattr(self, name) for name in self.fused_projections]
        q, k, v, gate, learn, fade = fused_linear(x, *layers)
        learn, fade = (rate.to(wide).transpose(1, 2) for rate in (learn, fade))
        before, hidden = states_of(state)
        mixed, last = self.conv(torch.cat((q, k, v), -1), flow, before)
        sizes = [q.shape[-1], k.shape[-1], v.shape[-1]]
        q, k, v = torch.split(F.silu(mixed).to(wide), sizes, -1)
        q, k = (
            unit(split_heads(x, cfg.key_heads)).transpose(1, 2).repeat_interleave(share, 1)
            for x in (q, k)
        )
        v = split_heads(v, cfg.value_heads).transpose(1, 2)
        step = F.softplus(fade + self.dt_bias.to(wide)[:, None])
        decay = -self.A_log.to(wide).exp()[:, None] * step  # (B, H, T)
        output, hidden = scan(q * cfg.key_dim**-0.5, k, v, decay, flow, hidden, learn.sigmoid())
        if state is not None:
            state.tensors = (last, hidden)
        gate = split_heads(gate, cfg.value_heads)
        gated = self.norm(output.transpose(1, 2), gate).flatten(2)
        return flow.look(self, "write", self.out_proj(gated.to(x.dtype)))

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Decays between 0.01 and 16 a step."""
        decays = torch.rand(self.cfg.value_heads, generator=generator) * 15.99 + 0.01
        self.A_log.copy_(decays.log())
        nn.init.ones_(self.dt_bias)


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


@builds(GatedAttention)
class GatedAttentionModule(Attention):
    """out(z * sigmoid(gate(x)))."""

    def __init__(self, cfg: GatedAttention, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.gate = linear(dim, self.heads * self.head_dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow, position: Position, kv: Any = None) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C); ``kv``: its cache."""
        x = flow.look(self, "in", x)
        z = (
            kv.attention(self, x, flow, position)
            if isinstance(kv, ExternalKV)
            else self.mix(x, flow, position, kv)
        )
        z = flow.look(self, "z", z * self.split(self.gate(x).sigmoid()))
        return flow.look(self, "write", self.out(z.transpose(1, 2).flatten(2)))

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
from ...core.nn.layers import linear
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

    ``in_proj`` and ``rates`` have the rows of each key head together: its query, its key, its
    values and their gates; how fast its values learn and how fast they fade.
    """

    writes = ("out_proj.weight",)

    def __init__(self, cfg: GatedDelta, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        need(causal, "GatedDelta reads from left to right; give it a causal stack.")
        self.cfg = cfg
        self.A_log = nn.Parameter(torch.empty(cfg.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(cfg.value_heads))
        self.in_proj = linear(dim, cfg.channels + cfg.inner, bias=False)
        self.rates = linear(dim, 2 * cfg.value_heads, bias=False)
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
        values = share * cfg.value_dim
        rows = self.in_proj(x).view(*x.shape[:2], cfg.key_heads, -1)
        tensors = torch.split(rows, [cfg.key_dim, cfg.key_dim, values, values], -1)
        q, k, v, gate = (x.flatten(2) for x in tensors)
        rates = self.rates(x).to(wide).view(*x.shape[:2], cfg.key_heads, -1)
        learn, fade = (x.flatten(2).transpose(1, 2) for x in torch.split(rates, share, -1))
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

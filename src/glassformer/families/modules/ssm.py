"""Mamba-2: a state space model whose decay is one number a head (Dao & Gu 2024)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import need
from ...core.nn.build import builds
from ...core.nn.cache import MixerState
from ...core.nn.flow import Flow, TracedModule
from ...core.nn.layers import linear
from ...core.nn.position import Position
from ..mixers import Mamba2
from .scan import CausalConv, scan, split_heads, states_of


class GatedNorm(nn.Module):
    """RMSNorm of x * silu(gate), each group of channels by itself."""

    def __init__(self, dim: int, groups: int, eps: float) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = x * F.silu(gate.to(x.dtype))
        wide = wide.view(*wide.shape[:-1], self.groups, -1)
        return self.weight * F.rms_norm(wide, wide.shape[-1:], None, self.eps).flatten(-2)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        nn.init.ones_(self.weight)


@builds(Mamba2)
class Mamba2Module(TracedModule):
    """Project, convolve, scan, norm by the gate, project back."""

    writes = ("out_proj.weight",)

    def __init__(self, cfg: Mamba2, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        need(causal, "Mamba2 reads from left to right; give it a causal stack.")
        self.cfg = cfg
        self.A_log = nn.Parameter(torch.empty(cfg.state_heads))
        self.D = nn.Parameter(torch.empty(cfg.state_heads))
        self.dt_bias = nn.Parameter(torch.empty(cfg.state_heads))
        self.in_proj = linear(dim, cfg.inner + cfg.channels + cfg.state_heads, cfg.bias)
        self.conv = CausalConv(cfg.channels, cfg.kernel, cfg.conv_bias)
        self.norm = GatedNorm(cfg.inner, cfg.groups, cfg.eps)
        self.out_proj = linear(cfg.inner, dim, cfg.bias)

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C)."""
        cfg, wide = self.cfg, torch.promote_types(x.dtype, torch.float32)
        projected = self.in_proj(flow.look(self, "in", x))
        gate, mixed, dt = torch.split(projected, [cfg.inner, cfg.channels, cfg.state_heads], -1)
        before, hidden = states_of(state)
        mixed, last = self.conv(mixed, flow, before)
        sizes = [cfg.inner, cfg.groups * cfg.state, cfg.groups * cfg.state]
        values, keys, queries = torch.split(F.silu(mixed).to(wide), sizes, -1)
        values = split_heads(values, cfg.state_heads).transpose(1, 2)
        keys, queries = (
            split_heads(x, cfg.groups)
            .transpose(1, 2)
            .repeat_interleave(cfg.state_heads // cfg.groups, 1)
            for x in (keys, queries)
        )
        step = F.softplus(dt.to(wide) + self.dt_bias.to(wide)).transpose(1, 2)  # (B, H, T)
        step = step if cfg.least_step is None else step.clamp(min=cfg.least_step)
        decay = -self.A_log.to(wide).exp()[:, None] * step
        output, hidden = scan(queries, keys, values * step[..., None], decay, flow, hidden)
        if state is not None:
            state.tensors = (last, hidden)
        output = (output + self.D.to(wide)[:, None, None] * values).transpose(1, 2).flatten(2)
        return flow.look(self, "write", self.out_proj(self.norm(output, gate).to(x.dtype)))

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Decays of 1, 2, 3 .. a step, and steps between 0.001 and 0.1."""
        heads = self.cfg.state_heads
        low, high = math.log(1e-3), math.log(0.1)
        step = (torch.rand(heads, generator=generator) * (high - low) + low).exp()
        self.A_log.copy_(torch.arange(1.0, heads + 1).log())
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
        nn.init.ones_(self.D)

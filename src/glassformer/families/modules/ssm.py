"""Mamba-2: a state space model whose decay is one number a head (Dao & Gu 2024)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ..mixers import Mamba2
from .scan import GatedNorm, ScanMixer, States, by_head, in_fp32, scan


@builds(Mamba2)
class Mamba2Module(ScanMixer):
    """Project, convolve, scan, norm by the gate, project back."""

    def __init__(self, cfg: Mamba2, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.norm = GatedNorm(cfg.inner, cfg.eps, cfg.groups, gate_first=True)

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        cfg, projected = self.cfg, self.in_proj(x)
        last, hidden = before or (None, None)
        gate, mixed, dt = torch.split(projected, [cfg.inner, cfg.channels, cfg.state_heads], -1)
        mixed, last = self.conv(mixed, flow, last)
        sizes = [cfg.inner, cfg.groups * cfg.state, cfg.groups * cfg.state]
        values, keys, queries = torch.split(in_fp32(F.silu(mixed)), sizes, -1)
        values, share = by_head(values, cfg.state_heads), cfg.state_heads // cfg.groups
        keys, queries = (
            by_head(x, cfg.groups).repeat_interleave(share, 1) for x in (keys, queries)
        )
        step = self.steps(dt)
        step = step if cfg.least_step is None else step.clamp(min=cfg.least_step)
        written = values * step[..., None]
        output, hidden = scan(queries, keys, written, self.decays(step), flow, hidden)
        output = (output + in_fp32(self.D)[:, None, None] * values).transpose(1, 2).flatten(2)
        return self.out_proj(self.norm(output, gate).to(x.dtype)), (last, hidden)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Decays of 1, 2, 3 .. a step, and steps between 0.001 and 0.1."""
        heads = self.cfg.state_heads
        low, high = math.log(1e-3), math.log(0.1)
        step = (torch.rand(heads, generator=generator) * (high - low) + low).exp()
        self.A_log.copy_(torch.arange(1.0, heads + 1).log())
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
        nn.init.ones_(self.D)

"""Five ways to tell a model about order (and one not to), all functions of positions.

A scheme speaks at one of three places and is silent at the others:

    embed    added to the embeddings      Learned, Sinusoidal
    rotate   turns queries and keys       Rotary
    bias     added to the scores          RelativeBias, Alibi

B batch, T queries, S keys, H heads, D head dim, C model dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .. import config
from .build import build, builds
from .flow import Flow, TracedModule
from .mask import Mask

RopeScaling: TypeAlias = Callable[[Tensor, float], tuple[Tensor, float]]
"""(frequencies, theta) -> (frequencies, attention factor): inverse frequencies in radians a
position."""


@builds(config.NoPosition)
class Position(TracedModule):
    """No position; the base of every scheme, which overrides ``embed``, ``rotate`` or ``bias``."""

    def __init__(self, cfg: config.Position, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.cfg: Any = cfg
        self.dim = dim

    def embed(self, x: Tensor, flow: Flow) -> Tensor:
        """Embeddings (B, T, C), positions added."""
        return x

    def rotate(self, x: Tensor, flow: Flow) -> Tensor:
        """Queries or keys (B, H, T, D), rotated by their positions."""
        return x

    def bias(self, mask: Mask) -> Tensor | None:
        """A term (B or 1, H, T, S) for the scores, from query and key positions."""
        return None

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Draw what is trained."""
        for weight in self.parameters(recurse=False):
            nn.init.normal_(weight, std=std, generator=generator)


@builds(config.Sinusoidal)
class Sinusoidal(Position):
    """Sines in the even dimensions, cosines in the odd ones (Vaswani et al. 2017, section 3.5), or
    in the halves."""

    def embed(self, x: Tensor, flow: Flow) -> Tensor:
        (wave,) = flow.at_positions(self, self.wave, dim=1)
        return x + flow.look(flow.embed_path, "position", wave.to(x.dtype))

    def wave(self, pos: Tensor) -> tuple[Tensor]:
        """Sinusoidal embeddings (B, T, C) at positions (B, T)."""
        even = torch.arange(0, self.dim, 2, device=pos.device, dtype=torch.float32)
        last = max(self.dim - 2, 1) if self.cfg.endpoint else self.dim
        # (B, T, C/2)
        angle = (pos[..., None] + self.cfg.offset).float() * self.cfg.theta ** (-even / last)
        sin_cos = (angle.sin(), angle.cos())
        wave = (
            torch.cat(sin_cos, dim=-1)
            if self.cfg.halves
            else torch.stack(sin_cos, dim=-1).flatten(-2)
        )
        return (wave[..., : self.dim],)


@builds(config.Learned)
class Learned(Position):
    """One trained vector per position (GPT-2, BERT)."""

    def __init__(self, cfg: config.Learned, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.weight = nn.Parameter(torch.empty(cfg.length, dim))

    def embed(self, x: Tensor, flow: Flow) -> Tensor:
        return x + flow.look(
            flow.embed_path, "position", nn.functional.embedding(flow.pos.clamp(min=0), self.weight)
        )


@builds(config.Rotary)
class Rotary(Position):
    """Pairs (i, i + half), or (2i, 2i + 1), of each head's dimensions turned by pos * theta^(-i /
    half) (Su et al.).

    Both are the same turn of dimensions in another order.
    """

    def __init__(self, cfg: config.Rotary, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.theta, self.fraction, self.interleaved = cfg.theta, cfg.fraction, cfg.interleaved
        self.scaling: RopeScaling | None = build(cfg.scaling) if cfg.scaling else None

    def rotate(self, x: Tensor, flow: Flow) -> Tensor:
        cos, sin = self.cos_sin(x.shape[-1], x.dtype, flow)
        turned = cos.shape[-1]
        if turned < x.shape[-1]:
            return torch.cat((self.turn(x[..., :turned], cos, sin), x[..., turned:]), dim=-1)
        return self.turn(x, cos, sin)

    def cos_sin(self, dim: int, dtype: torch.dtype, flow: Flow) -> tuple[Tensor, Tensor]:
        """The ``table`` at a pass's positions for heads of ``dim``, made once for all layers."""
        turned = int(dim * self.fraction)
        key = (self, turned, dtype)
        make = partial(self.table, turned=turned, dtype=dtype)
        tables: tuple[Tensor, Tensor] = flow.cached(
            key, lambda: flow.at_positions(key, make, dim=2)
        )
        return tables

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(a, b) -> (a cos - b sin, b cos + a sin) for the two halves a, b of the last dimension,
        or its neighbours."""
        if self.interleaved:
            partner = x.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
        else:
            partner = x.roll(x.shape[-1] // 2, dims=-1)
        return x * cos + partner * sin  # no addcmul: rounded as published models are

    def table(self, pos: Tensor, turned: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (B or 1, 1, T, turned), the sines of each pair's first negated."""
        exponent = torch.arange(0, turned, 2, device=pos.device, dtype=torch.int64).float() / turned
        frequencies, size = 1.0 / (self.theta**exponent), 1.0  # radians per position, (turned / 2)
        if self.scaling is not None:
            frequencies, size = self.scaling(frequencies, self.theta)
        angle = pos[:, None, :, None].float() * frequencies
        cos, sin = angle.cos(), angle.sin()
        if size != 1.0:
            cos, sin = cos * size, sin * size
        if self.interleaved:
            return cos.repeat_interleave(2, -1).to(dtype), torch.stack((-sin, sin), -1).flatten(
                -2
            ).to(dtype)
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


@builds(config.LinearScaling)
def linear_scaling(cfg: config.LinearScaling) -> RopeScaling:
    """Every frequency divided by the factor (Chen et al. 2023)."""
    return lambda frequencies, theta: (frequencies / cfg.factor, 1.0)


@builds(config.Llama3Scaling)
def llama3_scaling(cfg: config.Llama3Scaling) -> RopeScaling:
    """Wavelengths above length/low stretched by the factor, below length/high kept, blended
    between."""

    def scaling(frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        # full turns within the original length
        turns = cfg.original_context * frequencies / (2 * math.pi)
        keep = ((turns - cfg.low_freq_factor) / (cfg.high_freq_factor - cfg.low_freq_factor)).clamp(
            0, 1
        )
        return keep * frequencies + (1 - keep) * frequencies / cfg.factor, 1.0

    return scaling


@builds(config.YarnScaling)
def yarn_scaling(cfg: config.YarnScaling) -> RopeScaling:
    """Frequencies kept above ``fast`` turns in the original length, divided below ``slow`` turns,
    blended between.

    As published code has it, the blend is linear in the frequency's index, and its two ends are
    integers.
    """

    def scaling(frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        count = len(frequencies)

        # of the frequency with so many turns in the original length
        def index(turns: float) -> float:
            return count * math.log(cfg.original_context / (turns * 2 * math.pi)) / math.log(theta)

        first, last = (
            max(math.floor(index(cfg.beta_fast)), 0),
            min(math.ceil(index(cfg.beta_slow)), 2 * count - 1),
        )  # dim - 1, as published
        slowed = (
            (torch.arange(count, device=frequencies.device) - first) / max(last - first, 1e-3)
        ).clamp(0, 1)
        size = (
            0.1 * math.log(max(cfg.factor, 1.0)) + 1
            if cfg.attention_factor is None
            else cfg.attention_factor
        )
        return slowed * frequencies / cfg.factor + (1 - slowed) * frequencies, size

    return scaling


@builds(config.LongRopeScaling)
def long_rope_scaling(cfg: config.LongRopeScaling) -> RopeScaling:
    """Every frequency divided by its own factor (Ding et al. 2024)."""

    def scaling(frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        factors = torch.tensor(cfg.long if cfg.use_long else cfg.short).to(
            frequencies.device, non_blocking=True
        )
        exponent = torch.arange(0, 2 * len(frequencies), 2, device=frequencies.device).float() / (
            2 * len(frequencies)
        )
        grown = math.sqrt(1 + math.log(max(cfg.factor, 1.0)) / math.log(cfg.original_context))
        return 1.0 / (
            factors * theta**exponent
        ), grown if cfg.attention_factor is None else cfg.attention_factor  # rounded as published

    return scaling


@builds(config.RelativeBias)
class RelativeBias(Position):
    """A trained bias per head for each bucket of distances, wider buckets further away (T5, section
    2.1)."""

    def __init__(self, cfg: config.RelativeBias, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.buckets, self.distance, self.causal = cfg.buckets, cfg.distance, causal
        self.weight = nn.Parameter(torch.empty(cfg.buckets, heads))

    def bias(self, mask: Mask) -> Tensor:
        distance = mask.k_pos[:, None, :] - mask.q_pos[:, :, None]  # (B, T, S)
        return nn.functional.embedding(self.bucket(distance), self.weight).permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """Half the buckets count exactly, the other half grow logarithmically up to
        ``distance``."""
        if self.causal:
            buckets, first, behind = (
                self.buckets,
                torch.zeros_like(distance),
                (-distance).clamp(min=0),
            )
        else:  # one half for keys behind, one for keys ahead
            buckets = self.buckets // 2
            first, behind = (distance > 0).long() * buckets, distance.abs()
        exact = buckets // 2
        ratio = (behind.float() / exact).clamp(min=1).log() / math.log(self.distance / exact)
        far = exact + (ratio * (buckets - exact)).long().clamp(max=buckets - exact - 1)
        return first + torch.where(behind < exact, behind, far)


@builds(config.Alibi)
class Alibi(Position):
    """Scores fall linearly with distance, at a slope of its own for each head (Press et al.
    2022)."""

    def __init__(self, cfg: config.Alibi, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.slopes = alibi_slopes(heads)

    def bias(self, mask: Mask) -> Tensor:
        away = (mask.q_pos[:, None, :, None] - mask.k_pos[:, None, None, :]).abs()  # (B, 1, T, S)
        # made there, it would be waited for
        slopes = torch.tensor(self.slopes).to(away.device, non_blocking=True)
        return -away * slopes[:, None, None]


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8 i / heads) for a power of two; otherwise the next lower power's, filled from the next
    higher's."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]

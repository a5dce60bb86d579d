"""Position schemes that add: to embeddings (Learned, Sinusoidal), to scores (RelativeBias, Alibi).

B batch, T queries, S keys, H heads, K key-value heads, C model dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import config
from ..errors import UserError
from .build import builds
from .flow import Flow
from .position import Position


@builds(config.Sinusoidal)
class Sinusoidal(Position):
    """Sines in the even dimensions, cosines in the odd ones (Vaswani et al. 2017), or halves."""

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
        self.weight = nn.Parameter(torch.empty(cfg.start + cfg.length, dim))

    def embed(self, x: Tensor, flow: Flow) -> Tensor:
        row = flow.pos.clamp(min=0)
        row = row + self.cfg.start if self.cfg.start else row
        try:
            vectors = nn.functional.embedding(row, self.weight)
        except IndexError:  # of a CPU: a GPU is not waited for
            last, length = int(flow.pos.max()), self.cfg.length
            raise UserError(
                f"position {last} is past the {length} of its table; give 0 to {length - 1}."
            ) from None
        return x + flow.look(flow.embed_path, "position", vectors)


@builds(config.RelativeBias)
class RelativeBias(Position):
    """A trained bias a head for each bucket of distances, wider ones further away (T5, 2.1)."""

    def __init__(self, cfg: config.RelativeBias, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.buckets, self.distance, self.causal = cfg.buckets, cfg.distance, causal
        self.weight = nn.Parameter(torch.empty(cfg.buckets, heads))

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        distance = k_pos[:, None] - q_pos[:, :, None]  # (B, T, S)
        return nn.functional.embedding(self.bucket(distance), self.weight).permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """Half the buckets count exactly, the others grow logarithmically up to ``distance``."""
        buckets = self.buckets if self.causal else self.buckets // 2
        if self.causal:
            first, behind = torch.zeros_like(distance), (-distance).clamp(min=0)
        else:  # one half for keys behind, one for keys ahead
            first, behind = (distance > 0).long() * buckets, distance.abs()
        exact = buckets // 2
        ratio = (behind.float() / exact).clamp(min=1).log() / math.log(self.distance / exact)
        far = exact + (ratio * (buckets - exact)).long().clamp(max=buckets - exact - 1)
        return first + torch.where(behind < exact, behind, far)


@builds(config.Alibi)
class Alibi(Position):
    """Scores fall linearly with distance, at a slope for each head (Press et al. 2022)."""

    def __init__(self, cfg: config.Alibi, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.slopes = alibi_slopes(heads)

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        away = (q_pos[:, None, :, None] - k_pos[:, None, None]).abs()  # (B, 1, T, S)
        # made there, it would be waited for
        slopes = torch.tensor(self.slopes).to(away.device, non_blocking=True)
        return -away * slopes[:, None, None]


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8 i / heads) for a power of two; else those of the next lower and higher powers."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]

"""Position schemes: functions of positions, by which a model knows the order of tokens.

A scheme speaks at one of three places and is silent at the others:

    embed    added to the embeddings      Learned, Sinusoidal
    rotate   turns queries and keys       Rotary
    bias     added to the scores          RelativeBias, Alibi

B batch, T queries, S keys, H heads, D head dim, C model dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .. import config
from .build import build, builds
from .flow import Flow, TracedModule

RopeScaling: TypeAlias = Callable[[Tensor, float], tuple[Tensor, float]]
"""(frequencies, theta) -> (frequencies, attention factor), in radians a position."""


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

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """A term (B or 1, H, T, S) for the scores, from positions of queries (B or 1, T) and keys."""
        return None

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        for weight in self.parameters(recurse=False):
            nn.init.normal_(weight, std=std, generator=generator)


@builds(config.Rotary)
class Rotary(Position):
    """Pairs (i, i + half), or (2i, 2i + 1), of a head turned by pos * theta^(-i / half).

    Both are the same turn of dimensions in another order.
    """

    def __init__(self, cfg: config.Rotary, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.theta, self.fraction, self.interleaved = cfg.theta, cfg.fraction, cfg.interleaved
        self.scaling: RopeScaling | None = build(cfg.scaling) if cfg.scaling else None
        self._frequencies: dict[tuple[int, torch.device], tuple[Tensor, float]] = {}

    def rotate(self, x: Tensor, flow: Flow) -> Tensor:
        cos, sin = self.cos_sin(x.shape[-1], x.dtype, flow)
        turned = cos.shape[-1]
        if turned < x.shape[-1]:
            return torch.cat((self.turn(x[..., :turned], cos, sin), x[..., turned:]), dim=-1)
        return self.turn(x, cos, sin)

    def cos_sin(self, dim: int, dtype: torch.dtype, flow: Flow) -> tuple[Tensor, Tensor]:
        """The ``table`` at a pass's positions for heads of ``dim``, made once for all layers."""
        turned = int(dim * self.fraction)
        key = (self.cfg, turned, dtype)
        make = partial(self.table, turned=turned, dtype=dtype)
        table: tuple[Tensor, Tensor] = flow.cached(key, lambda: flow.at_positions(key, make, dim=2))
        return table

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(a, b) -> (a cos - b sin, b cos + a sin) for each head's halves a, b, or neighbours."""
        if self.interleaved:
            partner = x.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
        else:
            partner = x.roll(x.shape[-1] // 2, dims=-1)
        return x * cos + partner * sin  # no addcmul: rounded as published models are

    def frequencies(self, turned: int, device: torch.device) -> tuple[Tensor, float]:
        """Radians a position (turned / 2), scaled, and a factor of what turns: once a device."""
        key = (turned, device)
        # a compiler guards what it reads: the dictionary, once filled, would have it compile again
        if not torch.compiler.is_compiling() and key in self._frequencies:
            return self._frequencies[key]
        exponent = torch.arange(0, turned, 2, device=device, dtype=torch.int64).float() / turned
        result = 1.0 / (self.theta**exponent), 1.0
        if self.scaling is not None:
            result = self.scaling(result[0], self.theta)
        if not torch.compiler.is_compiling() and type(result[0]) is Tensor:  # no stand-in for one
            self._frequencies[key] = result
        return result

    def table(self, pos: Tensor, turned: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (B or 1, 1, T, turned), the sines of each pair's first negated."""
        frequencies, size = self.frequencies(turned, pos.device)
        angle = pos[:, None, :, None].float() * frequencies
        cos, sin = angle.cos(), angle.sin()
        if size != 1.0:
            cos, sin = cos * size, sin * size
        if self.interleaved:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos.to(dtype), sin.to(dtype)

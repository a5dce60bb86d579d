"""Multi-head latent attention: keys and values of all heads come from one small vector a token.

    x (B, T, C) --q_down, norm, q_up--> q (B, H, T, N + R), its last R turned
      |
      +--kv_down--> latent (B, 1, T, L), normed     --kv_up--> keys (B, H, S, N), values (B, H, S, V)
      |             turned key (B, 1, T, R)         --------> the keys' last R, one for all heads
                    |
                    +-- the cache keeps these two

B batch, T queries, S keys, H heads, L the latent vector's width, N, R and V the dimensions of a head
that do not turn, that turn, and of its values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.nn.attention import Attention
from ...core.nn.build import build, builds
from ...core.nn.cache import KV
from ...core.nn.flow import Flow
from ...core.nn.position import Position
from ..latent import LatentAttention
from .scan import Layered, add_layers, by_head


@builds(LatentAttention)
class LatentAttentionModule(Layered, Attention):
    """Attention to keys and values that a pass makes of what the cache keeps."""

    fused_projections = ()
    whole_norm = False

    def add_layers(self, cfg: LatentAttention, dim: int) -> None:
        """Gives it the layers into the latent vectors and out of them, and their norms."""
        self.cfg = cfg
        self.kv_norm = build(cfg.latent_norm, cfg.kv_rank)
        if cfg.q_rank is not None:
            self.q_norm: Any = build(cfg.latent_norm, cfg.q_rank)
        add_layers(self, cfg.shapes(dim))

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """The mixture of values (B, H, T, V), which engines take widened."""
        return z[..., : self.cfg.value_dim]

    def mix(self, x: Tensor, flow: Flow, position: Position, kv: KV | None) -> Tensor:
        """x (B, T, C) -> the mixture of values that each head makes for each token (B, H, T, V)."""
        q = self.queries(x, flow, position)
        latent, turned = self.latents(x, flow, position)
        if kv is not None:
            latent, turned = kv.extend(latent, turned)
        k, v = self.keys_values(latent, turned, flow, new=x.shape[1])
        return self.attend(flow, q, k, self.widened(v), self.self_mask(flow, kv), position)

    def qkv(self, x: Tensor, flow: Flow, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) -> queries, keys and widened values (B, H, T, N + R), which pages keep whole."""
        q = self.queries(x, flow, position)
        k, v = self.keys_values(*self.latents(x, flow, position), flow, new=x.shape[1])
        return q, k, self.widened(v)

    def widened(self, v: Tensor) -> Tensor:
        """Values (B, H, S, V) with zeros up to the width of keys, which engines take."""
        return F.pad(v, (0, self.head_dim - v.shape[-1]))

    def queries(self, x: Tensor, flow: Flow, position: Position) -> Tensor:
        """x (B, T, C) -> queries (B, H, T, N + R), the last R of each turned by position."""
        flat = self.q(x) if self.cfg.q_rank is None else self.q_up(self.q_norm(self.q_down(x)))
        sizes = [self.cfg.content_dim, self.cfg.rope_dim]
        content, turns = torch.split(self.split(flat), sizes, -1)
        return flow.look(self, "q", torch.cat((content, position.rotate(turns, flow)), -1))

    def latents(self, x: Tensor, flow: Flow, position: Position) -> tuple[Tensor, Tensor]:
        """x (B, T, C) -> what a cache keeps: latent vectors (B, 1, T, L), turned keys (B, 1, T, R)."""
        sizes = [self.cfg.kv_rank, self.cfg.rope_dim]
        latent, turns = torch.split(self.kv_down(x)[:, None], sizes, -1)
        return self.kv_norm(latent), position.rotate(turns, flow)

    def keys_values(
        self, latent: Tensor, turned: Tensor, flow: Flow, new: int
    ) -> tuple[Tensor, Tensor]:
        """Keys (B, H, S, N + R) and values (B, H, S, V) of latent vectors (B, 1, S, L).

        A tape sees those of a pass whose tokens are all ``new``.
        """
        heads = by_head(self.kv_up(latent[:, 0]), self.heads)
        content, v = torch.split(heads, [self.cfg.content_dim, self.cfg.value_dim], -1)
        k = torch.cat((content, turned.expand(-1, self.heads, -1, -1)), -1)
        if k.shape[2] == new:
            k, v = flow.look(self, "k", k), flow.look(self, "v", v)
        return k, v

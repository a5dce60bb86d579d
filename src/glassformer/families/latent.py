"""Attention whose keys and values come from one small vector a token. No torch here."""

from __future__ import annotations

from typing import Any

from ..core import config
from ..core.config.layers import Shapes, join, linear, shapes_of
from ..core.config.serial import PositiveInt
from ..core.errors import need


@config.member(config.Mixer)
class LatentAttention(config.Attention):
    """Multi-head latent attention: a cache keeps ``kv_rank + rope_dim`` numbers a token.

    ``bias`` is of the layers into the latent vectors and of the output. DeepSeek-AI 2024 (arXiv
    2405.04434, section 2.1).
    """

    kv_rank: PositiveInt = 512  # width of the vector that keys and values come from
    q_rank: PositiveInt | None = None  # width of the vector that queries come from; none: no such
    content_dim: PositiveInt = 128  # dimensions of a head's queries and keys that do not turn
    rope_dim: PositiveInt = 64  # dimensions of them that turn; the keys' are one for all heads
    value_dim: PositiveInt = 128  # dimensions of a head's values
    latent_norm: config.Norm = config.RMSNorm(1e-6)  # of both vectors

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.content_dim + self.rope_dim
        need(
            self.kv_heads in (None, self.heads) and self.head_dim in (None, size),
            "LatentAttention makes a key for each head, of content_dim + rope_dim numbers; leave "
            "kv_heads and head_dim out.",
        )
        need(self.qk_norm is None, "LatentAttention has latent_norm; leave qk_norm out.")
        need(
            self.rope_dim % 2 == 0,
            f"LatentAttention.rope_dim is {self.rope_dim} and pairs turn; make it even.",
        )
        need(
            self.value_dim <= size,
            f"LatentAttention.value_dim is {self.value_dim}; give at most content_dim + rope_dim "
            f"({size}).",
        )

    def width(self, dim: int) -> int:
        """The width of a head's queries and keys."""
        return self.content_dim + self.rope_dim

    def kept_width(self, dim: int) -> int:
        """Numbers that a cache keeps of a token."""
        return self.kv_rank + self.rope_dim

    def shapes(self, dim: int, *place: Any) -> Shapes:
        """The layers into the latent vectors and out of them, their norms and the output."""
        heads, bias = self.heads, self.bias
        width = heads * self.width(dim)
        rank = self.q_rank
        up = heads * (self.content_dim + self.value_dim)
        out = heads * self.value_dim
        queries = join(q=linear(dim, width, False))
        if rank is not None:
            queries = join(
                q_down=linear(dim, rank, bias),
                q_norm=shapes_of(self.latent_norm, rank),
                q_up=linear(rank, width, False),
            )
        return queries | join(
            kv_down=linear(dim, self.kv_rank + self.rope_dim, bias),
            kv_norm=shapes_of(self.latent_norm, self.kv_rank),
            kv_up=linear(self.kv_rank, up, False),
            out=linear(out, dim, bias if self.out_bias is None else self.out_bias),
        )

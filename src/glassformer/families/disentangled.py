"""Disentangled attention and its table of distances (DeBERTa). No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import config
from ..core.config.layers import Shapes, join, linear, shapes_of, table
from ..core.config.serial import PositiveInt
from ..core.errors import need


@config.member(config.Mixer)
class DisentangledAttention(config.Attention):
    """Attention whose scores add what content says to a distance, and a distance to content.

    The stack's position is a ``RelativeEmbedding``; each attention projects its vectors. He et al.
    2021 (arXiv 2006.03654, section 3.1).
    """

    has_pages = False  # no kernel adds these scores

    content_to_position: bool = True  # queries meet the keys of distances
    position_to_content: bool = True  # keys meet the queries of distances
    shared: bool = False  # distances are projected as content is (DeBERTa-v3)
    key_bias: bool = True  # of keys, of content and of distances (DeBERTa: none)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.bias and self.kv_heads in (None, self.heads) and self.qk_norm is None
        need(
            plain,
            "DisentangledAttention has bias = true and a key for each head; leave kv_heads and "
            "qk_norm out.",
        )
        need(
            self.content_to_position or self.position_to_content,
            "DisentangledAttention has no scores of distances; set content_to_position = true.",
        )

    def shapes(self, dim: int, *place: Any) -> Shapes:
        """The layers of attention, and those of distances where they have some."""
        content = super().shapes(dim, *place)
        if not self.key_bias:
            del content["k.bias"]
        width = self.heads * self.width(dim)
        apart = not self.shared
        keys = linear(dim, width, self.key_bias)
        queries = linear(dim, width)
        return content | join(
            pos_k=keys if apart and self.content_to_position else {},
            pos_q=queries if apart and self.position_to_content else {},
        )


@config.member(config.Position)
class RelativeEmbedding:
    """A vector for each distance, or bucket of distances, which every block projects (DeBERTa).

    Distances up to half of ``buckets`` have a vector each, those beyond share them, ever more up to
    ``distance``.
    """

    buckets: PositiveInt = 256  # vectors for either side
    distance: PositiveInt | None = 512  # from which on all share one; none: a vector for each
    norm: config.Norm | None = None  # of the vectors
    added: config.Learned | None = None  # positions added to the embeddings as well

    def __post_init__(self) -> None:
        exact = self.buckets // 2
        need(
            self.distance is None or (exact > 0 and self.distance > exact + 1),
            f"RelativeEmbedding.distance is {self.distance} with {self.buckets} buckets; give more "
            f"than {exact + 1}, and 2 buckets or more.",
        )

    def shapes(self, width: int, heads: int, causal: bool) -> Shapes:
        """The vectors, their norm, and what is added to the embeddings."""
        return table(2 * self.buckets, width) | join(
            norm=shapes_of(self.norm, width), added=shapes_of(self.added, width, heads, causal)
        )

    @property
    def limit(self) -> int | None:
        """Positions that it knows; None: any number."""
        return None if self.added is None else self.added.limit

    def check(self, name: str, pattern: Sequence[Any], dim: int, width: int, context: int) -> None:
        """Refuse embeddings of another width than the model's, whose blocks project the vectors."""
        need(
            width == dim,
            f"{name}.position has vectors of the embeddings' width {width} and its blocks are {dim} "
            "wide; leave embed.dim out.",
        )
        if self.added is not None:
            self.added.check(name, pattern, dim, width, context)

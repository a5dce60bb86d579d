"""Mechanisms of single families of encoders. No torch here.

FirstBlock       attention that reads the embeddings, which have a norm already (ModernBERT)
LearnedWithBias  a table of positions, and a bias of distances (MPNet)
LoopedStack      one block, passed again and again (ALBERT)
MaskedEmbed      masked tokens are zeros, and the others larger (ESM)
StoredRotary     rotary positions whose frequencies lie in the file (ESM)

Their modules are in modules/mechanisms.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import config
from ..core.config.layers import Shapes, join, shapes_of
from ..core.config.serial import NonNegativeInt
from ..core.errors import need


@config.member(config.Block)
class FirstBlock(config.Block):
    """A block whose attention reads the stream without a norm (ModernBERT)."""

    def shapes(self, dim: int, causal: bool, dropout: float) -> Shapes:
        """A block's, but for the norm before its attention."""
        layers = config.Block.shapes(self, dim, causal, dropout)
        return {name: x for name, x in layers.items() if not name.startswith("attn_norm.")}


@config.member(config.Position)
class LearnedWithBias(config.Learned):
    """A trained table added to the embeddings, and a bias of each distance added to the scores."""

    relative: config.RelativeBias = config.RelativeBias()  # the bias of a distance

    def shapes(self, width: int, heads: int, causal: bool) -> Shapes:
        """The table, and the biases of its distances."""
        biases = shapes_of(self.relative, width, heads, causal)
        return config.Learned.shapes(self, width, heads, causal) | join(relative=biases)

    def check(self, *place: Any) -> None:
        """Refuse a context past the table, and blocks of different numbers of heads."""
        config.Learned.check(self, *place)
        self.relative.check(*place)

    def check_causal(self, causal: bool) -> None:
        self.relative.check_causal(causal)


@config.member(config.Stack)
class LoopedStack(config.Stack):
    """A stack of one block, whose weights are those of every pass through it (ALBERT; Dehghani et
    al. 2018)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        need(len(self.pattern) == 1, "A LoopedStack has one block; give pattern one entry.")

    @property
    def passes(self) -> int:
        """A token is multiplied with the block's matrices so many times."""
        return self.depth

    def shapes(self, dim: int, width: int) -> Shapes:
        """A stack of one block has the same."""
        return config.Stack.shapes(replace(self, depth=min(self.depth, 1)), dim, width)


@config.member(config.Embed)
class MaskedEmbed(config.Embed):
    """Tokens to vectors: zeros for the token ``mask``, and as much more for a document's others.

    They are divided by the share that no mask hides, times that share in training, 0.88 (Rives et
    al. 2021, ESM).
    """

    mask: NonNegativeInt = 0  # id of the token that hides another

    shapes = config.Embed.shapes

    def __post_init__(self) -> None:
        plain = self.scale == 1.0 and not self.segments and not self.previous_token_embeddings
        need(plain, "MaskedEmbed has no scale, segments or earlier tokens; leave them out.")
        need(self.mask < self.vocab, f"MaskedEmbed.mask is {self.mask}; give the id of a token.")


@config.member(config.Position)
class StoredRotary(config.Rotary):
    """Rotary positions whose frequencies are stored, as ESM-2's are, which were rounded to 16
    bits."""

    def __post_init__(self) -> None:
        whole = self.fraction == 1.0 and self.scaling is None
        need(whole, "StoredRotary turns all of each head and has no scaling; leave both out.")

    def shapes(self, width: int, heads: int, causal: bool) -> Shapes:
        """A number for each pair of a head's dimensions."""
        return join(inv_freq=(width // heads // 2,))

"""Attention within a window and to a few global tokens (Longformer, LED). No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..core import config
from ..core.config.layers import Shapes, join, linear
from ..core.config.mask import MaskFunction
from ..core.config.serial import PositiveInt


@config.member(config.MaskRule)
class GlobalTokens(config.Rule):
    """The first ``tokens`` of a text, which all see (Longformer)."""

    tokens: PositiveInt = 1  # of a text, from its first on

    def allows(self, causal: bool) -> MaskFunction:
        """The rule as a function of positions."""
        return lambda q, k: (k < self.tokens) & (q >= -1)


def count_global(mask: Any) -> int:
    """The number of first tokens that a rule makes global."""
    rules = getattr(mask, "rules", ())
    return max((rule.tokens for rule in rules if isinstance(rule, GlobalTokens)), default=0)


@config.member(config.Mixer)
class LongformerAttention(config.Attention):
    """Attention whose global tokens see all, by queries, keys and values of their own.

    ``mask`` says which they are: ``window(257) | globaltokens(1)``; so does ``part``, where a text
    has several. Beltagy et al. 2020 (arXiv 2004.05150).
    """

    part: Literal["question", "choice"] | None = None  # global: up to a separator, or from two on
    separator: int = 2  # the token that ends a question

    has_pages = False  # no kernel has two kinds of queries

    def shapes(self, dim: int, *place: Any) -> Shapes:
        """The layers of attention, and three for global tokens."""
        width = self.heads * self.width(dim)
        layer = linear(dim, width, self.bias)
        beside = join(q_global=layer, k_global=layer, v_global=layer)
        return super().shapes(dim, *place) | beside


@config.member(config.Position)
class SideTable(config.Learned):
    """A table as long as the texts of its side, which may be shorter than the other's (LED)."""

    shapes = config.Learned.shapes

    @property
    def limit(self) -> Any:
        """None: a position past the table is refused where it is read."""
        return None

    def check(self, name: str, pattern: Sequence[Any], dim: int, width: int, context: int) -> None:
        """Nothing: the context is that of the longer side."""

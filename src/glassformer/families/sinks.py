"""Attention with sinks, and a mixture of clamped experts (GPT-OSS). No torch here."""

from __future__ import annotations

from typing import Any

from ..core import config
from ..core.config.layers import Shapes, join, linear
from ..core.config.serial import PositiveFloat
from ..core.errors import need


@config.member(config.Mixer)
class SinkAttention(config.Attention):
    """Attention whose heads have a learned score beside those of the keys, with no value behind it.

    A head that finds nothing gives its weight to this sink. Xiao et al. 2023 (arXiv 2309.17453);
    OpenAI 2025 (arXiv 2508.10925).
    """

    has_pages = False  # no kernel adds the sinks

    def shapes(self, dim: int, *place: Any) -> Shapes:
        """The layers of attention, and a sink for each head."""
        return super().shapes(dim, *place) | {"sinks": (self.heads,)}


@config.member(config.FeedForward)
class ClampedMoE(config.MoE):
    """A mixture whose router has a bias and whose experts clamp: (up + 1) gate sigmoid(alpha gate).

    The gate stays below ``limit``, and ``up`` between -``limit`` and ``limit``.
    """

    alpha: PositiveFloat = 1.702  # how steep the gate's sigmoid is
    limit: PositiveFloat = 7.0  # what gate and up are clamped to

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            isinstance(self.expert, config.GatedMLP) and self.expert.act == "silu",
            'ClampedMoE.expert is a GatedMLP with act = "silu"; alpha makes it steeper.',
        )
        need(not self.noise, "The router of a ClampedMoE has no noise; set noise = false.")

    def shapes(self, dim: int) -> Shapes:
        """The mixture's layers, and the router's bias."""
        return super().shapes(dim) | join(router=linear(dim, self.experts, True))

"""A mixture of experts whose router compares each expert with the best one. No torch here."""

from __future__ import annotations

from typing import Annotated

from ..core import config
from ..core.config.serial import Range
from ..core.errors import need


@config.member(config.FeedForward)
class SparseMixerMoE(config.MoE):
    """A mixture of two experts a token, chosen in turn (Liu et al. 2023, SparseMixer; Phi-3.5 MoE).

    A choice weighs its softmax among the logits that lie within ``2 * tolerance`` of it, as a share
    of its size. Training chooses as generation does, without samples.
    """

    normalize: bool = False  # both weights stand for themselves
    # half the relative distance of logits that compete
    tolerance: Annotated[float, Range(lambda x: x >= 0, "0 or more")] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            self.top_k == 2 and not self.normalize,
            "SparseMixerMoE chooses two experts, whose weights stand for themselves; set top_k = 2 "
            "and normalize = false.",
        )

    shapes = config.MoE.shapes

"""A mixture of experts whose router scores each expert by itself, and chooses within groups. No torch here."""

from __future__ import annotations

from typing import Literal

from ..core import config
from ..core.config.layers import Shapes
from ..core.config.serial import PositiveFloat, PositiveInt
from ..core.errors import need


@config.member(config.FeedForward)
class RoutedMoE(config.MoE):
    """A mixture that chooses by a corrected score and weighs by the score alone (DeepSeek-V3).

    The experts stand in ``groups``; a token goes to experts of its best ``top_groups`` alone. The
    score of a group is the sum of its ``group_best`` best scores. ``scale`` multiplies the weights,
    after ``normalize``. DeepSeek-AI 2024 (arXiv 2412.19437, section 2.1.2).
    """

    score: Literal["sigmoid", "softmax"] = "sigmoid"  # of a router's logits
    correction: bool = True  # a bias for each expert that chooses and does not weigh
    groups: PositiveInt = 1  # groups of experts
    top_groups: PositiveInt = 1  # groups that a token goes to
    group_best: PositiveInt = 2  # best scores of a group that make the group's score
    scale: PositiveFloat = 1.0  # the weights are multiplied by it

    def __post_init__(self) -> None:
        super().__post_init__()
        size, remainder = divmod(self.experts, self.groups)
        need(
            remainder == 0,
            f"RoutedMoE.groups {self.groups} does not divide experts {self.experts}; give a divisor.",
        )
        need(
            self.top_groups <= self.groups,
            f"RoutedMoE.top_groups is {self.top_groups}; give 1 to groups ({self.groups}).",
        )
        need(
            self.top_k <= self.top_groups * size,
            f"RoutedMoE.top_k is {self.top_k} and {self.top_groups} groups of {size} experts have "
            "fewer; give more top_groups.",
        )
        need(
            self.top_groups == self.groups or self.group_best <= size,
            f"RoutedMoE.group_best is {self.group_best} and a group has {size} experts; lower it.",
        )

    def shapes(self, dim: int) -> Shapes:
        """The mixture's layers, and the correction of each expert's score."""
        layers = super().shapes(dim)
        return layers | {"correction": (self.experts,)} if self.correction else layers

    def idle(self, name: str, size: int) -> int:
        """Numbers of the parameter ``name`` in experts that a token does not visit."""
        return 0 if name == "correction" else super().idle(name, size)


@config.member(config.FeedForward)
class ScaledInputMoE(RoutedMoE):
    """A mixture whose router scales the input of a token's expert, not its output (Llama 4)."""

    shapes = RoutedMoE.shapes

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.top_k == 1, f"ScaledInputMoE.top_k is {self.top_k}; a token goes to 1 expert.")

"""Optimizers and learning-rate schedules, as frozen dataclasses."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from ..errors import need
from .serial import PositiveInt, Range, Share, frozen

# ------------------------------------------------------------------------------------- optimizers


Rate: TypeAlias = Annotated[
    float,
    Range(lambda x: 0 < x <= 1000, "a learning rate above 0 and not above 1000, such as 1e-3"),
]
Decay: TypeAlias = Annotated[float, Range(lambda x: 0 <= x <= 1000, "a number from 0 to 1000")]
Small: TypeAlias = Annotated[
    float, Range(lambda x: 0 <= x <= 1, "a small number from 0 on, such as 1e-8")
]
Scale: TypeAlias = Annotated[float, Range(lambda x: 0 <= x <= 1000, "a factor from 0 to 1000")]
Length: TypeAlias = Annotated[
    float, Range(lambda x: x >= 0, "steps, or below 1 a share of the run; not below 0")
]
Floor: TypeAlias = Annotated[float, Range(lambda x: 0 <= x <= 1, "a share of the rate from 0 to 1")]


@frozen
class Group:
    """Parameters whose path matches ``pattern`` (fnmatch): ``lr_scale`` times the usual rate."""

    pattern: str  # fnmatch pattern of parameters' paths
    lr_scale: Scale = 1.0  # their learning rate, in multiples of the optimizer's
    weight_decay: Decay | None = None  # their weight decay; none: the optimizer's own rule


@frozen
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); vectors are not decayed."""

    lr: Rate = 2e-3  # the learning rate
    betas: tuple[float, float] = (0.9, 0.95)  # decay of the means of gradients and of their squares
    eps: Small = 1e-8  # added to the root of the second mean
    weight_decay: Decay = 0.1  # times lr at each step
    # paths (fnmatch) without decay
    undecayed: tuple[str, ...] = ("embed.*", "*norm*", "*.bias", "*.position.*")
    # parameters with a rate or decay of their own; the first that matches wins
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        good = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        need(good, f"AdamW.betas is {list(self.betas)}; give two numbers from 0 to below 1.")


@frozen
class Muon:
    """Momentum made orthogonal, for matrices in blocks (Jordan et al. 2024); ``rest`` has all else.

    Updates are scaled to AdamW's usual size (Liu et al. 2025), so one ``lr`` suits both.
    """

    # the learning rate of the matrices; what changes it alone changes rest.lr in proportion
    lr: Rate = 3e-3
    momentum: Share = 0.9  # share of the last update that stays
    # weight decay of the matrices, times lr at each step; the others have rest.weight_decay
    weight_decay: Decay = 0.1
    # fnmatch patterns of the paths whose matrices it has, experts' stacks too
    paths: tuple[str, ...] = ("*.blocks.*",)
    groups: tuple[Group, ...] = ()  # as AdamW's, for the matrices
    rest: AdamW = AdamW(lr=3e-3)  # the optimizer of all other parameters


Optimizer: TypeAlias = AdamW | Muon


# -------------------------------------------------------------------------------------- schedules
# lengths are steps or shares of the run, a floor is a share of the rate


@frozen
class Constant:
    """The full rate after a linear ``warmup``: steps, or below 1 a share of the run."""

    warmup: Length = 0.0  # steps of linear rise; below 1 a share of the run


@frozen
class Cosine:
    """Linear ``warmup``, then half a cosine down to ``floor`` times the rate."""

    warmup: Length = 0.05  # steps of linear rise; below 1 a share of the run
    floor: Floor = 0.1  # the last rate, as a share of the full rate


@frozen
class WarmupStableDecay:
    """Linear ``warmup``, the full rate, then linear ``decay`` towards ``floor``."""

    warmup: Length = 0.02  # steps of linear rise; below 1 a share of the run
    decay: Length = 0.6  # steps of linear fall at the end; below 1 a share of the run
    floor: Floor = 0.0  # where the rate would be one step after the last, as a share of it

    def __post_init__(self) -> None:
        overlapping = self.warmup < 1 and self.decay < 1 and self.warmup + self.decay > 1
        need(
            not overlapping,
            f"WarmupStableDecay's warmup {self.warmup} and decay {self.decay} are more than the "
            "run; lower one.",
        )


@frozen
class InverseSqrt:
    """Linear ``warmup`` steps, then falling with the square root of the step.

    ``dim`` None: the rate is the peak. ``dim`` given, with rate 1: Vaswani et al. 2017, section
    5.3, to the letter.
    """

    warmup: Length = 4000  # steps of linear rise; below 1 a share of the run
    # the model's width, with which rate 1 is that of 2017; none: the rate is the peak
    dim: PositiveInt | None = None


Schedule: TypeAlias = Constant | Cosine | WarmupStableDecay | InverseSqrt

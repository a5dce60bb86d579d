"""How the weights move: optimizers and learning-rate schedules, as frozen dataclasses. No torch
here."""

from __future__ import annotations

import math
from typing import TypeAlias

from ..errors import need
from .serial import frozen

# ------------------------------------------------------------------------------------- optimizers


def _check(name: str, lr: float, weight_decay: float) -> None:
    need(
        0 < lr <= 1000,
        f"{name}.lr is {lr}; give a learning rate above 0 and not above 1000, such as 1e-3.",
    )
    need(
        0 <= weight_decay <= 1000,
        f"{name}.weight_decay is {weight_decay}; give a number from 0 to 1000.",
    )


@frozen
class Group:
    """The parameters whose path matches ``pattern`` (fnmatch): their rate is ``lr_scale`` times the
    optimizer's."""

    pattern: str  # fnmatch pattern of parameters' paths
    lr_scale: float = 1.0  # their learning rate, in multiples of the optimizer's
    weight_decay: float | None = None  # their weight decay; none: the optimizer's own rule

    def __post_init__(self) -> None:
        need(
            0 <= self.lr_scale <= 1000,
            f"Group.lr_scale is {self.lr_scale}; give a factor from 0 to 1000.",
        )
        decay = self.weight_decay
        need(
            decay is None or 0 <= decay <= 1000,
            f"Group.weight_decay is {decay}; give a number from 0 to 1000.",
        )


@frozen
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); vectors are not decayed."""

    lr: float = 2e-3  # the learning rate
    betas: tuple[float, float] = (0.9, 0.95)  # decay of the means of gradients and of their squares
    eps: float = 1e-8  # added to the root of the second mean
    weight_decay: float = 0.1  # times lr at each step
    # paths (fnmatch) without decay
    undecayed: tuple[str, ...] = ("embed.*", "*norm*", "*.bias", "*.position.*")
    # parameters with a rate or decay of their own; the first that matches wins
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        _check("AdamW", self.lr, self.weight_decay)
        good = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        need(good, f"AdamW.betas is {list(self.betas)}; give two numbers from 0 to below 1.")
        need(
            0 <= self.eps <= 1,
            f"AdamW.eps is {self.eps}; give a small number from 0 on, such as 1e-8.",
        )


@frozen
class Muon:
    """Momentum made orthogonal, for the matrices inside blocks (Jordan et al. 2024); ``rest`` has
    everything else.

    Updates are scaled to AdamW's usual size (Liu et al. 2025), so one ``lr`` suits both.
    """

    # the learning rate of the matrices; what changes it alone changes rest.lr in proportion
    lr: float = 3e-3
    momentum: float = 0.9  # share of the last update that stays
    # weight decay of the matrices, times lr at each step; the others have rest.weight_decay
    weight_decay: float = 0.1
    # fnmatch patterns of the paths whose matrices it has, experts' stacks too
    paths: tuple[str, ...] = ("*.blocks.*",)
    groups: tuple[Group, ...] = ()  # as AdamW's, for the matrices
    rest: AdamW = AdamW(lr=3e-3)  # the optimizer of all other parameters

    def __post_init__(self) -> None:
        _check("Muon", self.lr, self.weight_decay)
        need(
            0 <= self.momentum < 1,
            f"Muon.momentum is {self.momentum}; give a number from 0 to below 1.",
        )


Optimizer: TypeAlias = AdamW | Muon


# -------------------------------------------------------------------------------------- schedules


class _Schedule:
    """Base class of schedules: lengths are steps or shares of the run, a floor is a share of the
    rate."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name in ("warmup", "decay"):
            value = getattr(self, name, 0.0)
            fix = "give steps, or below 1 a share of the run; not below 0."
            need(0 <= value < math.inf, f"{kind}.{name} is {value}; {fix}")
        floor = getattr(self, "floor", 0.0)
        need(0 <= floor <= 1, f"{kind}.floor is {floor}; give a share of the rate from 0 to 1.")


@frozen
class Constant(_Schedule):
    """The full rate after a linear ``warmup``: steps, or below 1 a share of the run."""

    warmup: float = 0.0  # steps of linear rise; below 1 a share of the run


@frozen
class Cosine(_Schedule):
    """Linear ``warmup`` (steps, or below 1 a share of the run), then half a cosine down to
    ``floor`` times the rate."""

    warmup: float = 0.05  # steps of linear rise; below 1 a share of the run
    floor: float = 0.1  # the last rate, as a share of the full rate


@frozen
class WarmupStableDecay(_Schedule):
    """Linear ``warmup``, the full rate, then linear ``decay`` towards ``floor``: steps, or below 1
    shares."""

    warmup: float = 0.02  # steps of linear rise; below 1 a share of the run
    decay: float = 0.6  # steps of linear fall at the end; below 1 a share of the run
    floor: float = 0.0  # the rate that the fall ends at, as a share of the full rate

    def __post_init__(self) -> None:
        super().__post_init__()
        overlapping = self.warmup < 1 and self.decay < 1 and self.warmup + self.decay > 1
        need(
            not overlapping,
            f"WarmupStableDecay's warmup {self.warmup} and decay {self.decay} are more than the "
            "run; lower one.",
        )


@frozen
class InverseSqrt(_Schedule):
    """Linear ``warmup`` steps, then falling with the square root of the step.

    ``dim`` None: the rate is the peak. ``dim`` given, with rate 1: Vaswani et al. 2017, section
    5.3, to the letter.
    """

    warmup: float = 4000  # steps of linear rise; below 1 a share of the run
    # the model's width, with which rate 1 is that of 2017; none: the rate is the peak
    dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            self.dim is None or self.dim > 0,
            f"InverseSqrt.dim is {self.dim}; give the model's width, or none.",
        )


Schedule: TypeAlias = Constant | Cosine | WarmupStableDecay | InverseSqrt

"""Scalings of rotary frequencies, for texts longer than those a model was trained on. No torch here."""

from __future__ import annotations

from typing import TypeAlias

from ..errors import need
from .serial import PositiveFloat, PositiveInt, frozen


@frozen
class LinearScaling:
    """Positions divided by ``factor`` (Chen et al. 2023, position interpolation)."""

    factor: PositiveFloat  # positions are divided by it


@frozen
class Llama3Scaling:
    """Llama 3.1's frequency-dependent scaling: low frequencies divided by ``factor``, high ones kept."""

    factor: PositiveFloat = 8.0  # low frequencies are divided by it
    low: PositiveFloat = 1.0  # frequencies with fewer turns in length positions are low
    high: PositiveFloat = 4.0  # frequencies with more turns are high
    length: PositiveInt = 8192  # positions learnt first

    def __post_init__(self) -> None:
        need(self.low < self.high, f"Llama3Scaling.low is {self.low}; give less than high ({self.high}).")


@frozen
class YarnScaling:
    """Frequencies of less than ``slow`` turns in ``length`` positions divided by ``factor``, above ``fast`` kept.

    ``size`` multiplies what is turned (None: 0.1 ln(factor) + 1). Peng et al. 2023, YaRN, sections 3.2 to 3.4.
    """

    factor: PositiveFloat  # how many times longer the texts become
    length: PositiveInt  # positions learnt first
    fast: PositiveFloat = 32.0  # frequencies with more turns in length positions are kept
    slow: PositiveFloat = 1.0  # frequencies with fewer turns are divided by factor
    size: PositiveFloat | None = None  # queries and keys are multiplied by it; none: 0.1 ln(factor) + 1


@frozen
class LongRopeScaling:
    """Each frequency divided by a factor of its own: one of ``short``, in a ``far`` model one of ``long``.

    ``length`` positions were learnt first and ``factor`` times as many later; ``size`` multiplies what is turned (None:
    sqrt(1 + ln(factor) / ln(length))). Published code goes from short to long once a text grows past ``length``, which
    a cached token cannot: a model here is one or the other. Ding et al. 2024, LongRoPE (arXiv 2402.13753); Phi-3.
    """

    short: tuple[float, ...]  # what each frequency is divided by, for texts up to length
    long: tuple[float, ...]  # what each frequency is divided by, in a far model
    length: int  # positions learnt first
    factor: PositiveFloat = 1.0  # how many times more positions were learnt later
    size: PositiveFloat | None = None  # queries and keys are multiplied by it; none: sqrt(1 + ln(factor) / ln(length))
    far: bool = False  # take the long factors

    def __post_init__(self) -> None:
        need(self.length > 1, f"LongRopeScaling.length is {self.length}; give 2 or more.")
        even = len(self.short) == len(self.long) > 0 and min(*self.short, *self.long) > 0
        need(even, "LongRopeScaling.short and long are as many factors as frequencies each, all above 0.")

    @property
    def limit(self) -> int | None:
        """Positions that short factors are right for; None where the long ones are taken."""
        return None if self.far else self.length

    def check(self, where: str, frequencies: int) -> None:
        """Refuse factors that are not one a frequency."""
        factors = len(self.short)
        need(
            factors == frequencies,
            f"{where}: LongRopeScaling has {factors} factors for {frequencies} frequencies; give each one.",
        )


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling

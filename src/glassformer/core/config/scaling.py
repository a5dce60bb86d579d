"""Scalings of rotary frequencies, for texts longer than those a model was trained on."""

from __future__ import annotations

from typing import Any, TypeAlias

from ..errors import need
from .serial import AtLeastTwo, PositiveFloat, PositiveInt, frozen


@frozen
class LinearScaling:
    """Positions divided by ``factor`` (Chen et al. 2023, position interpolation)."""

    factor: PositiveFloat  # positions are divided by it


@frozen
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies divided by ``factor``, high ones unchanged."""

    factor: PositiveFloat = 8.0  # low frequencies are divided by it
    low_freq_factor: PositiveFloat = 1.0  # frequencies with fewer turns in them are low
    high_freq_factor: PositiveFloat = 4.0  # frequencies with more turns are high
    original_context: PositiveInt = 8192  # positions learnt first

    def __post_init__(self) -> None:
        low, high = self.low_freq_factor, self.high_freq_factor
        need(
            low <= high,
            f"Llama3Scaling.low_freq_factor is {low}; give at most high_freq_factor ({high}).",
        )


@frozen
class YarnScaling:
    """Frequencies of less than ``beta_slow`` turns in ``original_context`` positions divided by
    ``factor``.

    Those above ``beta_fast`` turns are kept. ``attention_factor`` multiplies what is turned (None:
    0.1 ln(factor) + 1). Peng et al. 2023, YaRN, sections 3.2 to 3.4.
    """

    factor: PositiveFloat  # how many times longer the texts become
    original_context: PositiveInt  # positions learnt first
    beta_fast: PositiveFloat = 32.0  # frequencies with more turns in them are kept
    beta_slow: PositiveFloat = 1.0  # frequencies with fewer turns are divided by factor
    # queries and keys are multiplied by it; none: 0.1 ln(factor) + 1
    attention_factor: PositiveFloat | None = None
    truncate: bool = True  # the blend begins and ends at whole frequencies; false: between them


@frozen
class LongRopeScaling:
    """Each frequency divided by its own factor, of ``short``, or of ``long`` with ``use_long``.

    ``original_context`` positions were learnt first and ``factor`` times as many later;
    ``attention_factor`` multiplies what is turned (None: sqrt(1 + ln(factor) /
    ln(original_context))). Published code goes from short to long once a text grows past
    ``original_context``, which a cached token cannot: a model here is one or the other. Ding et al.
    2024, LongRoPE (arXiv 2402.13753); Phi-3.
    """

    short: tuple[float, ...]  # what each frequency is divided by, for texts up to original_context
    long: tuple[float, ...]  # what each frequency is divided by, for longer texts
    original_context: AtLeastTwo  # positions learnt first
    factor: PositiveFloat = 1.0  # how many times more positions were learnt later
    # queries and keys are multiplied by it; none: from factor
    attention_factor: PositiveFloat | None = None
    use_long: bool = False  # take the long factors

    def __post_init__(self) -> None:
        even = len(self.short) == len(self.long) > 0 and min(*self.short, *self.long) > 0
        need(
            even,
            "LongRopeScaling.short and long are as many factors as frequencies each, all above 0.",
        )

    @property
    def limit(self) -> int | None:
        """Positions that short factors are right for; None where the long ones are taken."""
        return None if self.use_long else self.original_context

    def check(self, path: str, frequencies: int) -> None:
        """Refuse factors that are not one a frequency."""
        factors = len(self.short)
        need(
            factors == frequencies,
            f"{path}: LongRopeScaling has {factors} factors for {frequencies} frequencies; give "
            "each one.",
        )


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


def longer_hint(model: Any) -> str:
    """A sentence for a text that is too long for a model which could be one for longer texts."""
    scalings = model.long_scalings.values()
    longer = any(not scaling.use_long and scaling.factor > 1 for scaling in scalings)
    hint = " For longer texts: glassformer convert MODEL FOLDER --context N --layout glassformer."
    return hint if longer else ""

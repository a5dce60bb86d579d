"""Scalings that differ for short texts and for long ones. No torch here."""

from __future__ import annotations

from .model import Model, stacks
from .scaling import LongRopeScaling


def long_scalings(model: Model) -> dict[str, LongRopeScaling]:
    """The scalings that differ for short texts and for long ones, by the name of their stack."""
    scalings = {
        name: getattr(stack.position, "scaling", None) for name, stack in stacks(model).items()
    }
    return {
        name: scaling for name, scaling in scalings.items() if isinstance(scaling, LongRopeScaling)
    }


def longer_hint(model: Model) -> str:
    """A sentence to add where a text is too long for a model that could be one for longer texts;
    else nothing."""
    if any(
        not scaling.use_long and scaling.factor > 1 for scaling in long_scalings(model).values()
    ):
        return (
            " For longer texts: glassformer convert MODEL FOLDER --context N --layout glassformer."
        )
    return ""

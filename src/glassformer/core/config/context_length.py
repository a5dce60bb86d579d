"""A model for longer or shorter texts than it was made for. No torch here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import need
from .model import Model, stacks
from .position import Rotary
from .scaling import LongRopeScaling


def long_scalings(model: Model) -> dict[str, LongRopeScaling]:
    """The scalings that differ for short texts and for long ones, by the name of their stack."""
    scalings = {
        name: getattr(stack.position, "scaling", None) for name, stack in stacks(model).items()
    }
    return {
        name: scaling for name, scaling in scalings.items() if isinstance(scaling, LongRopeScaling)
    }


def for_context(model: Model, context: int) -> Model:
    """The same model for texts of ``context`` tokens; a LongRopeScaling takes the factors for such
    texts.

    Raises UserError for what is not a number of tokens, and for more than its LongRopeScaling or
    its table holds.
    """
    need(
        type(context) is int and context > 0, f"context is {context!r}; give an integer, 1 or more."
    )
    changes: dict[str, Any] = {"context": context}
    for name, scaling in long_scalings(model).items():
        most = round(scaling.original_context * scaling.factor)
        need(
            context <= most,
            f"context is {context} and this model was made for {most} tokens; give no more.",
        )
        stack = stacks(model)[name]
        assert isinstance(stack.position, Rotary)
        position = replace(
            stack.position, scaling=replace(scaling, use_long=context > scaling.original_context)
        )
        changes[name] = replace(stack, position=position)
    return replace(model, **changes)


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

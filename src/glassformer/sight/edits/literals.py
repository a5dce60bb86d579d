"""An edit as it is written on a command line: the same text as in Python, read as literals
and never run."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from ...core.errors import UserError, nearest, need
from ..linear_probes import Probe
from .base import Edit
from .parts import attn_off, expert_off, head_off, mlp_off, set_attention
from .token_edits import mask_token, swap_token
from .values import patch, project_out, scale, set_value, steer

EDITS: dict[str, type[Edit]] = {
    edit.__name__: edit
    for edit in (
        head_off,
        attn_off,
        mlp_off,
        expert_off,
        mask_token,
        swap_token,
        scale,
        set_value,
        steer,
        project_out,
        patch,
        set_attention,
    )
}
"""Every edit by its name."""
NONE = type(None)
TYPES: dict[str, Any] = {
    "str": str,
    "str | None": (str, NONE),
    "int": int,
    "float": (int, float),
    "int | None": (int, NONE),
    "int | str": (int, str),
    "Mapping[int, float] | Sequence[float]": (dict, list, tuple),
    "Positions": (int, str, list, tuple, NONE),
}
"""The types of a literal, by the annotation of the argument that it stands for."""


def parse(text: str, probes: Mapping[str, Probe] | None = None) -> Edit:
    """The edit that a line such as ``head_off("decoder.blocks.3.attn", 4)`` makes; UserError for
    any other text.

    A line names a probe by its file, or by its name in ``probes``: what comes over a network opens no
    file.
    """
    example = 'write it as in Python, such as head_off("decoder.blocks.3.attn", 4)'
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"{text!r} is no edit; {example}.") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise UserError(f"{text!r} is no edit; {example}.")
    name = call.func.id
    if name not in EDITS:
        raise UserError(f"There is no edit {name!r}.{nearest(name, EDITS)}")
    try:
        args = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UserError(
            f"{text!r} must contain only texts, numbers, lists and tables; {example}."
        ) from None
    signature = inspect.signature(EDITS[name])
    try:
        arguments = signature.bind(*args, **named).arguments
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise UserError(f"{text!r} does not fit ({error}); {name} takes {takes}.") from None
    for argument, value in arguments.items():
        kind = str(signature.parameters[argument].annotation)
        need(
            isinstance(value, TYPES.get(kind, object)),
            f"{text!r} does not fit: {argument} is {value!r}; give {kind}.",
        )
    vector = arguments.get("vector")
    if probes is not None and isinstance(vector, str):
        arguments["vector"] = served_probe(vector, probes)
    return EDITS[name](**arguments)


def served_probe(name: str, probes: Mapping[str, Probe]) -> Probe:
    """The probe of that name; UserError where there is none."""
    need(name in probes, f'No direction is called "{name}" here.{nearest(name, probes)}')
    return probes[name]

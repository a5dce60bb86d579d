"""Sentences about a body that is not what its pydantic model says: the first wrong field, the value sent and
those allowed."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from ...core.files import JsonObject
from .replies import HttpError


def field_error(sentence: str) -> PydanticCustomError:
    """Validation error with a message."""
    return PydanticCustomError("wrong", "{sentence}", {"sentence": sentence})


def is_ids(value: Any) -> bool:
    """True for a list of whole numbers."""
    return isinstance(value, list) and all(
        (isinstance(item, int) and not isinstance(item, bool))
        or (isinstance(item, float) and item.is_integer())
        for item in value
    )


def validation_error(error: ValidationError) -> HttpError:
    """One HttpError 400 about the first invalid field."""
    problems: list[Any] = error.errors(include_url=False)
    first = problems[0]
    place = [str(key) for key in first["loc"]]
    if not place:
        is_sentence = first["type"] == "wrong"
        message = "The body is not a JSON object; send one as application/json."
        return (
            HttpError(400, first["msg"], first["msg"].split()[0])
            if is_sentence
            else HttpError(400, message, code="invalid_json")
        )
    alternatives = [first]
    # one of several forms that a field may have: it is held to its own
    if _field_path(place[:-1]) == _field_path(place):
        alternatives = [
            problem
            for problem in problems
            if [*map(str, problem["loc"])][: len(place) - 1] == place[:-1]
        ]
        deeper = [problem for problem in alternatives if not problem["type"].endswith("_type")]
        alternatives = (
            deeper[:1] if deeper and deeper[0]["type"] != "literal_error" else alternatives
        )
    name = _field_path([str(key) for key in alternatives[0]["loc"]])
    return HttpError(400, _describe(name, alternatives), param=name)


def _field_path(keys: list[str]) -> str:
    """Formats a pydantic location: messages.0.content as messages[0].content, without the names of
    union members."""
    path = ""
    for key in keys:
        if key.isdigit():
            path += f"[{key}]"
        elif (
            key.isidentifier()
            and not key[0].isupper()
            and key not in ("str", "int", "list", "dict", "float", "bool")
        ):
            path += f".{key}" if path else key
    return path[:200] or "The body"


TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
}
SENTENCES = {
    "missing": "is missing; give it.",
    "extra_forbidden": "is no field here; leave it out.",
    "finite_number": "is not finite; give a number.",
    "ge": "is {value}; give {bound} or more.",
    "gt": "is {value}; give more than {bound}.",
    "le": "is {value}; give {bound} or less.",
    "lt": "is {value}; give less than {bound}.",
    "max_length": "has more than {bound} {entries}; give fewer.",
    "min_length": "is empty; give at least one of its {entries}.",
}
"""By pydantic's type of the error, or by the bound that a value misses."""


def _describe(name: str, problems: list[JsonObject]) -> str:
    """Message for one invalid field: its name, the value sent and the values allowed."""
    problem = problems[0]
    kind = problem["type"]
    context = problem.get("ctx", {})
    value = _preview(problem.get("input"))
    if kind == "wrong":
        return f"{name}: {problem['msg']}"
    entries = "characters" if kind.startswith("string") else "entries"
    for key, template in SENTENCES.items():
        if key == kind or key in context:
            bound = _number(context.get(key, 0))
            return f"{name} {template.format(value=value, bound=bound, entries=entries)}"
    allowed = dict.fromkeys(
        alternative.get("ctx", {}).get("expected") or _expected_type(alternative["type"])
        for alternative in problems
    )
    return f"{name} is {value}; give {' or '.join(allowed)}."


def _expected_type(error: str) -> str:
    return TYPE_NAMES.get(error.partition("_")[0], "an object")


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _preview(value: Any) -> str:
    """Short preview of an invalid value."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = (
        json.dumps(value)
        if value is None or isinstance(value, str | int | float)
        else type(value).__name__
    )
    if len(text) <= 60:
        return text
    return f"{text[:56]} ..."

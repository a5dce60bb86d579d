"""Field types of request bodies, read strictly (true is no number, nor is "1"), and invalid fields in
one sentence: the field, the value sent, and the values allowed."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ..core.files import JsonObject
from .asgi.limits import LONGEST_NAME, LONGEST_STOP, MOST_STOPS, MOST_TEXTS
from .asgi.replies import HttpError

TYPO_SIMILARITY = 0.85  # of two names: max_token is max_tokens, and min_tokens is not
IGNORED_FIELDS = {
    *(
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    ),
    *(
        "function_call",
        "prediction",
        "parallel_tool_calls",
        "include_obfuscation",
        "spaces_between_special_tokens",
    ),
}
"""Fields of other servers that change no answer here; they are ignored."""

NEUTRAL_VALUES: dict[str, Any] = {
    "add_generation_prompt": True,
    "annotations": [],
    "bad_words": [],
    "chat_template_kwargs": {},
    "continue_final_message": False,
    "continuous_usage_stats": False,
    "detokenize": True,
    "early_stopping": False,
    "echo": False,
    "functions": [],
    "include_stop_str_in_output": False,
    "min_tokens": 0,
    "modalities": ["text"],
    "length_penalty": 1.0,
    "num_beams": 1,
    "priority": 0,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "skip_special_tokens": True,
    "suffix": "",
    "tool_calls": [],
    "tools": [],
    "typical_p": 1.0,
    "use_beam_search": False,
}
"""Fields of other servers by the one value that asks for what is done here anyway; any other is
refused."""

UNSUPPORTED = {
    **dict.fromkeys(("functions", "tools"), "tools are not called yet; leave it out."),
    **dict.fromkeys(
        ("chat_template", "chat_template_kwargs"),
        "the chat template is the model's own and no request can change it; leave it out.",
    ),
    "prompt_logprobs": "a completion with echo and logprobs gives them.",
    "suffix": "the model continues a text and fills no gap; leave it out.",
    "use_beam_search": "translations are searched for by /v1/translate.",
}
"""Fields that other servers know and this one refuses, since an answer without them would be
wrong."""

SYNONYMS = {
    "allowed_token_ids": "logit_bias",
    "bad_words": "logit_bias",
    "length": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "top_n_tokens": "top_logprobs",
}
"""Other servers' names of what a field here does."""


class RequestBody(BaseModel):
    """Base of request bodies; an unknown field that could change the answer is rejected."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        names = {field.alias or name for name, field in cls.model_fields.items()}
        for name, setting in value.items() if isinstance(value, dict) else ():
            neutral = setting in (None, NEUTRAL_VALUES.get(name))
            if not neutral and name not in names and name not in IGNORED_FIELDS:
                cls.refuse(name, [*names])
        return value

    @classmethod
    def refuse(cls, name: str, names: list[str]) -> None:
        """Raises for an unknown field, with a suggestion for typos and names of other servers."""
        if name in UNSUPPORTED:
            raise field_error(f"{name} is not supported here: {UNSUPPORTED[name]}")
        near = [SYNONYMS[name]] if SYNONYMS.get(name) in names else []
        near = near or (
            get_close_matches(name, names, 1, TYPO_SIMILARITY) if len(name) <= 64 else []
        )
        hint = f'; did you mean "{near[0]}"?' if near else "; leave it out."
        raise field_error(f"{ascii(name[:80])[1:-1]} is no field here{hint}")


def field_error(sentence: str) -> PydanticCustomError:
    """Validation error with a message."""
    return PydanticCustomError("wrong", "{sentence}", {"sentence": sentence})


def _to_int(value: Any) -> Any:
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
    )


JsonInt = Annotated[int, BeforeValidator(_to_int)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Ids = list[JsonInt]


def is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(
        (isinstance(item, int) and not isinstance(item, bool))
        or (isinstance(item, float) and item.is_integer())
        for item in value
    )


def _texts(value: Any) -> Any:
    """Validates a text, token ids, or a list of either."""
    fits = isinstance(value, str) or (
        isinstance(value, list)
        and (
            is_ids(value)
            or all(isinstance(item, str) for item in value)
            or all(is_ids(item) for item in value)
        )
    )
    if not fits:
        raise field_error(
            "This is neither a text nor token ids; give a text, a list of ids, or a list of either."
        )
    if isinstance(value, list) and not value:
        raise field_error("This is empty; give a text, a list of ids, or a list of either.")
    if isinstance(value, str) or isinstance(value[0], str):
        several = isinstance(value, list)
    elif several := isinstance(value[0], list):
        value = [[*map(int, ids)] for ids in value]
    else:
        value = [*map(int, value)]
    if several and len(value) > MOST_TEXTS:
        raise field_error(
            f"These are {len(value)} texts, and a request may hold {MOST_TEXTS}; send "
            "several requests."
        )
    return value


Texts = Annotated[
    str | list[str] | Ids | list[Ids],
    # of a union pydantic tries every form, and notes each of a million ids that is no text
    SkipValidation,
    BeforeValidator(_texts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": MOST_TEXTS,
                },
                {"type": "array", "items": {"type": "integer"}, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "integer"}},
                    "minItems": 1,
                    "maxItems": MOST_TEXTS,
                },
            ]
        }
    ),
]
"""Prompts, or texts to be embedded: one or several, as texts or as token ids."""

Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Stops = Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)]


def validation_error(problems: list[Any]) -> HttpError:
    """Turns pydantic's validation errors into one HttpError about the first invalid field."""
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
    kind, context = problem["type"], problem.get("ctx", {})
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
    return text if len(text) <= 60 else f"{text[:56]} ..."

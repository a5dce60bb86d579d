"""The types of fields: whole numbers, numbers and texts as JSON has them; true is no number and "1" none either."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from .limits import LONGEST_NAME, LONGEST_STOP, MOST_STOPS, MOST_TEXTS

NEAR = 0.85  # max_token is max_tokens; min_tokens, which others know, is not


class Asked(BaseModel):
    """A request's body; unknown fields are passed over, since clients send many, but not misspelt ones."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _misspelt(cls, value: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in value if isinstance(value, dict) else ():
            if isinstance(name, str) and name not in known:
                cls.unknown(name, known)
        return value

    @classmethod
    def unknown(cls, name: str, known: list[str]) -> None:
        """Refuse a field that is nearly one of ours."""
        near = get_close_matches(name, known, 1, NEAR) if 4 <= len(name) <= 64 else []
        if near:
            raise wrong(f'{name} is no field here; did you mean "{near[0]}"?')


def wrong(sentence: str) -> PydanticCustomError:
    """What a validator raises."""
    return PydanticCustomError("wrong", "{sentence}", {"sentence": sentence})


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Ids = list[Whole]


def is_ids(value: Any) -> bool:
    """Whether these are token ids."""
    return isinstance(value, list) and all(
        (isinstance(one, int) and not isinstance(one, bool)) or (isinstance(one, float) and one.is_integer())
        for one in value
    )


def _texts(value: Any) -> Any:
    """A text, ids, or a list of either; its sentence says so where it is none."""
    fits = isinstance(value, str) or (
        isinstance(value, list)
        and (is_ids(value) or all(isinstance(one, str) for one in value) or all(is_ids(one) for one in value))
    )
    if not fits:
        raise wrong("This is neither a text nor token ids; give a text, a list of ids, or a list of either.")
    if isinstance(value, list) and not value:
        raise wrong("This is empty; give a text, a list of ids, or a list of either.")
    if isinstance(value, list) and not is_ids(value) and len(value) > MOST_TEXTS:
        raise wrong(f"These are {len(value)} texts, and a request may hold {MOST_TEXTS}; send several requests.")
    return value


Texts = Annotated[
    str | list[str] | Ids | list[Ids],
    BeforeValidator(_texts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_TEXTS},
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

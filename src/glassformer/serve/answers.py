"""What the small paths answer."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ModelCard(TypedDict):
    """One model; ``abilities`` are the paths that it answers."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    abilities: list[str]


class ModelList(TypedDict):
    """Every model."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(TypedDict):
    """A text as ids; their names in the vocabulary where they were asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class DetokenizeAnswer(TypedDict):
    """Ids as text."""

    prompt: str


class TokenizerInfo(TypedDict):
    """Beside these, each part's token and its id: bos_token, bos_token_id and so on."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    chat_template: str | None

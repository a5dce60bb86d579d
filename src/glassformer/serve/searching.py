"""What takes several passes, all in the engine's queue beside everybody else's: words for blanks, and translations."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from anyio import to_thread
from starlette.requests import Request as HttpRequest
from typing_extensions import TypedDict

from .. import generation
from ..engine import Encode
from ..generation.predictions import Filling
from .errors import refuse
from .following import Followers, alone, client_of, unless_gone
from .generating import cannot
from .prompts import check_lengths
from .registry import ServedModel
from .schemas import FillRequest, TranslateRequest


class Filled(TypedDict):
    """A token for each blank, or for one; ``probability`` is that of all of them together."""

    tokens: list[int]
    words: list[str]
    probability: float
    text: str


class FillAnswer(TypedDict):
    """The likeliest first: a list for each blank, or one of ways to fill all."""

    object: Literal["list"]
    model: str
    data: list[list[Filled]]


class Found(TypedDict):
    """A translation; ``score`` ranks it, ``logprobs`` are its tokens'."""

    tokens: list[int]
    logprobs: list[float]
    score: float
    finish: str
    text: str


class Translation(TypedDict):
    """The best of one source, in the order of their scores."""

    index: int
    best: list[Found]


class TranslateAnswer(TypedDict):
    """The translations in the order of the sources."""

    object: Literal["list"]
    model: str
    data: list[Translation]


async def fill(http: HttpRequest, served: ServedModel, asked: FillRequest, followers: Followers) -> FillAnswer:
    """POST /v1/fill"""
    refuse(not served.fills, cannot(served, "fill blanks"), "model")
    check_lengths([asked.input], served.characters, served.context, "input")
    work = partial(Filling, served.tokenizer, asked.input, served.context, asked.top, asked.order)
    filling = await to_thread.run_sync(work)
    segments = filling.segments if served.config.embed.segments else None
    while rows := filling.rows:
        made = [Encode(row, segments, "logits", filling.blanks, client_of(http)) for row in rows]
        filling.read(torch.stack(await followers.outputs(http, served, made)))
    found: Any = [[one.to_dict() for one in blank] for blank in filling.found]
    return {"object": "list", "model": served.id, "data": found}


async def translate(
    http: HttpRequest, served: ServedModel, asked: TranslateRequest, followers: Followers
) -> TranslateAnswer:
    """POST /v1/translate"""
    refuse(not served.translates, cannot(served, "translate"), "model")
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    refuse(not all(texts), "A text is empty; give some text.", "input")
    check_lengths(texts, served.characters, served.context, "input")
    generation.check_beams(asked.beams, asked.best, asked.length_penalty, asked.max_new)
    how: dict[str, Any] = {"beams": asked.beams, "best": asked.best, "length_penalty": asked.length_penalty}
    how["max_new"] = asked.max_new
    work = partial(generation.search, served.model, served.tokenizer, texts, **how)
    found = await unless_gone(http, alone(work))
    data: Any = [{"index": n, "best": [one.to_dict() for one in some]} for n, some in enumerate(found)]
    return {"object": "list", "model": served.id, "data": data}

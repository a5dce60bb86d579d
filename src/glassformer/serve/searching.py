"""What takes several passes, all in the engine's queue beside everybody else's: words for blanks,
and translations."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NotRequired

import torch
from anyio import to_thread
from starlette.requests import Request as HttpRequest
from typing_extensions import TypedDict

from ..engine import Encode, Request
from ..generation.beam import check_beams, source_ids
from ..generation.predictions import Filling
from ..generation.prompt import first_tokens
from .errors import refuse
from .following import Followers, alone, client_of, unless_gone
from .generating import cannot
from .inspecting import Inspection, inspected
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
    inspect: NotRequired[Inspection]


class Translation(TypedDict):
    """The best of one source, in the order of their scores."""

    index: int
    best: list[Found]


class TranslateAnswer(TypedDict):
    """The translations in the order of the sources."""

    object: Literal["list"]
    model: str
    data: list[Translation]


async def fill(
    http: HttpRequest, served: ServedModel, asked: FillRequest, followers: Followers
) -> FillAnswer:
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
    refuse(
        bool(asked.edits),
        "A search is not edited; POST /v1/inspect takes edits of one text.",
        "edits",
    )
    only = asked.positions is not None and asked.inspect is None
    refuse(only, "positions say what is to be inspected; inspect is missing.", "inspect")
    check_beams(asked.beams, asked.best, asked.length_penalty, asked.max_new)
    cfg, tokenizer, client = served.config, served.tokenizer, client_of(http)
    sources = await to_thread.run_sync(partial(source_ids, cfg, tokenizer, texts))
    how: dict[str, Any] = {
        "beams": asked.beams,
        "n": asked.best,
        "length_penalty": asked.length_penalty,
    }
    begin = first_tokens(tokenizer, None, cfg)
    made = [
        Request(begin, source, max_new=asked.max_new, client=client, **how) for source in sources
    ]
    handles = await followers.answered(http, served, made)
    data: Any = [
        {"index": n, "best": [one.to_dict() for one in found.hypotheses]}
        for n, found in enumerate(handles)
    ]
    for answer, source in zip(data, sources, strict=True) if asked.inspect is not None else ():
        for one in answer["best"]:  # the last token is found and not read
            read = [*begin, *one["tokens"][:-1]]
            one["inspect"] = await unless_gone(
                http, alone(partial(inspected, served, read, asked, source))
            )
    return {"object": "list", "model": served.id, "data": data}

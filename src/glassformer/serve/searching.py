"""Endpoints that take several passes through the engine: mask filling and beam-search
translation."""

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
from .following import RequestTracker, client_of, run_exclusively, until_disconnect
from .generating import unsupported_message
from .inspecting import Inspection, run_inspection
from .prompts import check_lengths
from .registry import ServedModel
from .schemas import FillRequest, TranslateRequest


class FillCandidate(TypedDict):
    """Candidate for one blank, or for all of them; ``probability`` is the joint one."""

    tokens: list[int]
    words: list[str]
    probability: float
    text: str


class FillAnswer(TypedDict):
    """Candidates by probability: a list for each blank, or one list of joint fillings."""

    object: Literal["list"]
    model: str
    data: list[list[FillCandidate]]


class TranslationCandidate(TypedDict):
    """A translation; ``score`` ranks it, ``logprobs`` are its tokens'."""

    tokens: list[int]
    logprobs: list[float]
    score: float
    finish: str
    text: str
    inspect: NotRequired[Inspection]


class Translation(TypedDict):
    """Best hypotheses of one source, in the order of their scores."""

    index: int
    best: list[TranslationCandidate]


class TranslateAnswer(TypedDict):
    """The translations in the order of the sources."""

    object: Literal["list"]
    model: str
    data: list[Translation]


async def fill(
    http: HttpRequest, served: ServedModel, body: FillRequest, followers: RequestTracker
) -> FillAnswer:
    """POST /v1/fill"""
    refuse(not served.fills, unsupported_message(served, "fill blanks"), "model")
    check_lengths([body.input], served.characters, served.context, "input")
    work = partial(Filling, served.tokenizer, body.input, served.context, body.top, body.order)
    filling = await to_thread.run_sync(work)
    segments = filling.segments if served.config.embed.segments else None
    while rows := filling.rows:
        requests = [
            Encode(row, segments, "logits", filling.blanks, client_of(http)) for row in rows
        ]
        filling.update(torch.stack(await followers.outputs(http, served, requests)))
    candidates: Any = [[candidate.to_dict() for candidate in blank] for blank in filling.results]
    return {"object": "list", "model": served.id, "data": candidates}


async def translate(
    http: HttpRequest, served: ServedModel, body: TranslateRequest, followers: RequestTracker
) -> TranslateAnswer:
    """POST /v1/translate"""
    refuse(not served.translates, unsupported_message(served, "translate"), "model")
    texts = [body.input] if isinstance(body.input, str) else body.input
    refuse(not all(texts), "A text is empty; give some text.", "input")
    check_lengths(texts, served.characters, served.context, "input")
    refuse(
        bool(body.edits),
        "A search is not edited; POST /v1/inspect takes edits of one text.",
        "edits",
    )
    positions_only = body.positions is not None and body.inspect is None
    refuse(positions_only, "positions say what is to be inspected; inspect is missing.", "inspect")
    check_beams(body.beams, body.best, body.length_penalty, body.max_new)
    cfg, tokenizer, client = served.config, served.tokenizer, client_of(http)
    sources = await to_thread.run_sync(partial(source_ids, cfg, tokenizer, texts))
    options: dict[str, Any] = {
        "beams": body.beams,
        "n": body.best,
        "length_penalty": body.length_penalty,
    }
    start = first_tokens(tokenizer, None, cfg)
    requests = [
        Request(start, source, max_new=body.max_new, client=client, **options) for source in sources
    ]
    handles = await followers.run_batches(http, served, requests)
    data: Any = [
        {"index": n, "best": [hypothesis.to_dict() for hypothesis in handle.hypotheses]}
        for n, handle in enumerate(handles)
    ]
    for answer, source in zip(data, sources, strict=True) if body.inspect is not None else ():
        for candidate in answer["best"]:  # the last token is found and not read
            target = [*start, *candidate["tokens"][:-1]]
            candidate["inspect"] = await until_disconnect(
                http, run_exclusively(partial(run_inspection, served, target, body, source))
            )
    return {"object": "list", "model": served.id, "data": data}

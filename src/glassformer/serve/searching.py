"""Endpoints that take several passes through the engine: mask filling and beam-search
translation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import Field
from typing_extensions import TypedDict

from ..core.generation.beam import check_beams
from ..core.generation.prompt import first_tokens
from ..tasks.predictions import Filling
from ..tasks.translation import source_ids
from .asgi.limits import FILL_LOGITS_AT_ONCE, MOST_FILL_LOGITS, MOST_FILL_TEXT
from .asgi.replies import refuse
from .encoding import ListAnswer, list_answer
from .engine import Encode, Request
from .inspecting import Inspection, answer_size, run_inspection
from .schemas import (
    InspectOptions,
    JsonInt,
    ModelRequest,
    Number,
    Positions,
    TextOrTexts,
    TopCount,
    example,
)
from .served_models import Context

Beams = Annotated[JsonInt, Field(ge=1, le=32)]


class FillRequest(ModelRequest):
    """POST /v1/fill: a text with blanks, ``___`` or the mask token."""

    input: Annotated[str, Field(min_length=1)]
    top: TopCount = 5
    order: Literal["apart", "left", "sure"] = "apart"


class TranslateRequest(InspectOptions):
    """POST /v1/translate: sources for an encoder-decoder, searched with beams; each that is found
    can be inspected."""

    model_config = example(input="the cat sat", beams=2, max_new=8)

    input: TextOrTexts
    beams: Beams = 5
    best: Beams = 1
    length_penalty: Annotated[Number, Field(ge=-10, le=10)] = 1.0
    max_new: Annotated[JsonInt, Field(ge=1, le=4096)] = 200
    positions: Positions | None = None


class FillCandidate(TypedDict):
    """Candidate for one blank, or for all of them; ``probability`` is the joint one."""

    tokens: list[int]
    words: list[str]
    probability: float
    text: str


class FillAnswer(ListAnswer):
    """Candidates by probability: a list for each blank, or one list of joint fillings."""

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


class TranslateAnswer(ListAnswer):
    """The translations in the order of the sources."""

    data: list[Translation]


async def fill(context: Context, body: FillRequest) -> Any:
    """Candidates for the blanks of a text."""
    served = context.served
    context.require("fill", "fill blanks")
    served.check_lengths([body.input], "input")
    fields = (served.tokenizer, body.input, served.context, body.top, body.order)
    filling = await context.run(len(body.input), Filling, *fields)
    check_filling(filling, served.config.embed.vocab)
    segments = filling.segments if served.config.embed.segments > 1 else None
    numbers = len(filling.blanks) * served.config.embed.vocab  # of a row's logits
    batch_size = min(context.batch_size, max(1, FILL_LOGITS_AT_ONCE // numbers))
    while rows := filling.rows[:batch_size]:
        requests = [Encode(row, segments, "logits", filling.blanks, context.client) for row in rows]
        size = 4 * numbers * len(rows)
        context.hold(size)
        outputs = await context.outputs(requests)
        await context.run_heavy(lambda rows: filling.update(torch.stack(rows)), outputs)
        del outputs
        context.hold(-size)
    candidates: Any = [[candidate.to_dict() for candidate in blank] for blank in filling.results]
    return list_answer(context, candidates)


def check_filling(filling: Filling, vocab: int) -> None:
    """Raises HttpError 400 for blanks whose logits or texts together would not fit in memory."""
    blanks = len(filling.blanks)
    is_apart = filling.order == "apart"
    too_many = blanks * vocab * (1 if is_apart else filling.top) > MOST_FILL_LOGITS
    texts = filling.top * (blanks if is_apart else 1)
    too_long = texts * len(filling.text) > MOST_FILL_TEXT
    message = (
        f"{blanks} blanks with top = {filling.top} are more than one request may fill; give "
        "fewer blanks, or a smaller top."
    )
    refuse(too_many or too_long, message, "top")


async def translate(context: Context, body: TranslateRequest) -> Any:
    """Beam-search translations of each source."""
    served = context.served
    context.require("translate", "translate")
    texts = [body.input] if isinstance(body.input, str) else body.input
    refuse(not all(texts), "A text is empty; give some text.", "input")
    served.check_lengths(texts, "input")
    message = "A search is not edited; POST /v1/inspect takes edits of one text."
    refuse(bool(body.edits or body.directions), message, "edits")
    positions_only = body.positions is not None and body.inspect is None
    refuse(positions_only, "positions say what is to be inspected; inspect is missing.", "inspect")
    check_beams(body.beams, body.best, body.length_penalty, body.max_new)
    cfg = served.config
    tokenizer = served.tokenizer
    sources = await context.run(sum(map(len, texts)), source_ids, cfg, tokenizer, texts)
    start = first_tokens(tokenizer, None, cfg)
    requests = [
        Request(
            start,
            source,
            max_new=body.max_new,
            n=body.best,
            client=context.client,
            beams=body.beams,
            length_penalty=body.length_penalty,
        )
        for source in sources
    ]
    handles = await context.run_batches(requests)
    data: Any = [
        {"index": n, "best": [hypothesis.to_dict() for hypothesis in handle.hypotheses]}
        for n, handle in enumerate(handles)
    ]
    returned = 0
    for answer, source in zip(data, sources, strict=True) if body.inspect is not None else ():
        for candidate in answer["best"]:  # the last token is found and not read
            target = [*start, *candidate["tokens"][:-1]]
            candidate["inspect"] = await context.run_heavy(
                run_inspection, served, target, body, source, returned
            )
            returned += answer_size(served, body, candidate["inspect"])
    return list_answer(context, data)

"""Code shared by completions and chat: engine requests, choices assembled from events, usage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, cast

from anyio import to_thread
from typing_extensions import TypedDict

from ..engine import Event, Handle, Request, Usage
from ..engine.request import Guide
from ..errors import need
from ..generation.sample import Sampling
from . import grammars
from .errors import refuse
from .logprobs import ScoredToken, TokenBuffer
from .registry import ServedModel
from .schemas import GenerationRequest

Finish = Literal["stop", "length"]


class PromptDetails(TypedDict):
    """Prompt tokens found in the prefix cache."""

    cached_tokens: int


class UsageObject(TypedDict):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptDetails]


def total_usage(usages: Sequence[Usage]) -> UsageObject:
    """Sums the usage of all prompts of a request."""
    prompt, cached = sum(usage.prompt for usage in usages), sum(usage.cached for usage in usages)
    completion = sum(usage.generated for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass(frozen=True)
class ResponseHead:
    """Fields that all chunks of a response share."""

    id: str
    created: int
    model: str


def response_head(served: ServedModel, prefix: str) -> ResponseHead:
    return ResponseHead(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), served.id)


async def engine_request(
    served: ServedModel,
    body: GenerationRequest,
    tokens: Sequence[int],
    max_new: int | None,
    top: int | None,
    client: str,
) -> Request:
    """Engine request for one prompt. Raises ApiError and UserError for unsupported options."""
    return Request(
        tokens,
        sampling=sampling_params(body),
        max_new=max_new,
        seed=body.seed,
        n=body.n or 1,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
        stop_tokens=_stop_tokens(served, body),
        logit_bias=_biases(body),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logprobs=top,
        guide=await _guide(served, body),
        client=client,
    )


def sampling_params(body: GenerationRequest) -> Sampling:
    """Sampling parameters of a request; null means the default."""
    return Sampling(
        1.0 if body.temperature is None else body.temperature,
        body.top_k if body.top_k is not None and body.top_k > 0 else None,
        None if body.top_p in (None, 1.0) else body.top_p,
        body.min_p or None,
        body.repetition_penalty or 1.0,
    )


def _stop_tokens(served: ServedModel, body: GenerationRequest) -> list[int] | None:
    eos = [] if body.ignore_eos or served.tokenizer.eos is None else [served.tokenizer.eos]
    stop_ids = body.stop_token_ids or []
    vocab_size = served.tokenizer.size
    refuse(
        any(not 0 <= id < vocab_size for id in stop_ids),
        f"stop_token_ids are from 0 to {vocab_size - 1}.",
        "stop_token_ids",
    )
    return [*eos, *stop_ids]


def _biases(body: GenerationRequest) -> dict[int, float]:
    biases = {}
    for name, bias in (body.logit_bias or {}).items():
        plain = name.isascii() and name.isdigit() and len(name) < 10
        refuse(
            not plain,
            'logit_bias maps token ids to numbers; write the ids as in "50256".',
            "logit_bias",
        )
        biases[int(name)] = bias
    return biases


async def _guide(served: ServedModel, body: GenerationRequest) -> Callable[[], Guide] | None:
    """Grammar that constrains the answer, compiled in a thread; None without one."""
    form = body.response_format
    kind, source = "json", cast(Any, body.guided_json)
    if body.guided_regex is not None:
        kind, source = "regex", body.guided_regex
    elif body.guided_grammar is not None:
        kind, source = "lark", body.guided_grammar
    elif form is not None and form.type == "json_object":
        source = {"type": "object"}
    elif form is not None and form.type == "json_schema" and form.json_schema is not None:
        source = form.json_schema.schema_
    if source is None:
        return None
    need(not body.ignore_eos, "A grammar says where the answer ends; leave out ignore_eos.")
    return await to_thread.run_sync(
        grammars.guide_factory, served.tokenizer, served.config.embed.vocab, kind, source
    )


class Choices:
    """Text and tokens of each continuation of one prompt, assembled from engine events."""

    def __init__(self, served: ServedModel, handle: Handle) -> None:
        tokenizer, request = served.tokenizer, handle.request
        assert isinstance(request, Request)
        has_text = any(not tokenizer.hides(token) for token in request.tokens[-16:])
        self.buffers = [TokenBuffer(tokenizer, has_text) for _ in range(request.n)]

    def push(self, event: Event) -> tuple[str, list[ScoredToken], Finish | None]:
        """Returns the new text, the tokens that it completes, and the finish reason."""
        tokens = self.buffers[event.index].push(event)
        finish: Finish | None = None if event.finish_reason is None else _finish(event)
        return event.text, tokens, finish


def _finish(event: Event) -> Finish:
    return "stop" if event.finish_reason == "stop" else "length"


def collect_choices(
    served: ServedModel, handle: Handle, events: Sequence[Event]
) -> list[tuple[str, list[ScoredToken], Finish]]:
    """Text, tokens and finish reason of each finished continuation."""
    choices = Choices(served, handle)
    texts, tokens, finishes = dict[int, str](), dict[int, list[ScoredToken]](), dict[int, Finish]()
    for event in events:
        text, new_tokens, finish = choices.push(event)
        texts[event.index] = texts.get(event.index, "") + text
        tokens.setdefault(event.index, []).extend(new_tokens)
        finishes[event.index] = finish or "length"
    return [(texts[index], tokens[index], finishes[index]) for index in sorted(texts)]


def unsupported_message(served: ServedModel, ability: str) -> str:
    """Error message for a model that lacks an ability."""
    return (
        f'"{served.id}" does not {ability}; it answers '
        f"{', '.join(served.abilities()) or 'nothing else'}."
    )

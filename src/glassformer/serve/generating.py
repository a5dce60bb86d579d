"""What completions and chat share: a request's fields as the engine's, choices with their tokens,
usage."""

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
from .logprobs import Shown, Told
from .registry import ServedModel
from .schemas import Sampled

Finish = Literal["stop", "length"]


class PromptDetails(TypedDict):
    """Of the prompt's tokens."""

    cached_tokens: int


class UsageObject(TypedDict):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptDetails]


def usage_of(all: Sequence[Usage]) -> UsageObject:
    """Of one request, over its prompts."""
    read, cached = sum(one.prompt for one in all), sum(one.cached for one in all)
    written = sum(one.generated for one in all)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass(frozen=True)
class Head:
    """What every chunk of an answer says alike."""

    id: str
    created: int
    model: str


def head(served: ServedModel, prefix: str) -> Head:
    """For a new answer."""
    return Head(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), served.id)


async def request_of(
    served: ServedModel,
    asked: Sampled,
    tokens: Sequence[int],
    new: int | None,
    top: int | None,
    client: str,
) -> Request:
    """What the engine is asked for one prompt; raises ApiError and UserError for what it cannot
    do."""
    return Request(
        tokens,
        sampling=sampling_of(asked),
        max_new=new,
        seed=asked.seed,
        n=asked.n or 1,
        stop=[asked.stop] if isinstance(asked.stop, str) else asked.stop or (),
        stop_tokens=_stop_tokens(served, asked),
        logit_bias=_biases(asked),
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logprobs=top,
        guide=await _guide(served, asked),
        client=client,
    )


def sampling_of(asked: Sampled) -> Sampling:
    """How tokens are chosen; null is a field's default."""
    return Sampling(
        1.0 if asked.temperature is None else asked.temperature,
        asked.top_k if asked.top_k is not None and asked.top_k > 0 else None,
        None if asked.top_p in (None, 1.0) else asked.top_p,
        asked.min_p or None,
        asked.repetition_penalty or 1.0,
    )


def _stop_tokens(served: ServedModel, asked: Sampled) -> list[int] | None:
    own = [] if asked.ignore_eos or served.tokenizer.eos is None else [served.tokenizer.eos]
    more = asked.stop_token_ids or []
    known = served.tokenizer.size
    refuse(
        any(not 0 <= one < known for one in more),
        f"stop_token_ids are from 0 to {known - 1}.",
        "stop_token_ids",
    )
    return [*own, *more]


def _biases(asked: Sampled) -> dict[int, float]:
    found = {}
    for name, bias in (asked.logit_bias or {}).items():
        plain = name.isascii() and name.isdigit() and len(name) < 10
        refuse(
            not plain,
            'logit_bias maps token ids to numbers; write the ids as in "50256".',
            "logit_bias",
        )
        found[int(name)] = bias
    return found


async def _guide(served: ServedModel, asked: Sampled) -> Callable[[], Guide] | None:
    """The grammar that the answer must follow, compiled in a thread."""
    form = asked.response_format
    kind, source = "json", cast(Any, asked.guided_json)
    if asked.guided_regex is not None:
        kind, source = "regex", asked.guided_regex
    elif asked.guided_grammar is not None:
        kind, source = "lark", asked.guided_grammar
    elif form is not None and form.type == "json_object":
        source = {"type": "object"}
    elif form is not None and form.type == "json_schema" and form.json_schema is not None:
        source = form.json_schema.schema_
    if source is None:
        return None
    need(not asked.ignore_eos, "A grammar says where the answer ends; leave out ignore_eos.")
    return await to_thread.run_sync(
        grammars.guide, served.tokenizer, served.config.embed.vocab, kind, source
    )


class Choices:
    """The continuations of one prompt as they grow: for each event its text and the tokens to be
    told with it."""

    def __init__(self, served: ServedModel, handle: Handle) -> None:
        tokenizer, request = served.tokenizer, handle.request
        assert isinstance(request, Request)
        begun = any(not tokenizer.hides(one) for one in request.tokens[-16:])
        self.shown = [Shown(tokenizer, begun) for _ in range(request.n)]

    def push(self, event: Event) -> tuple[str, list[Told], Finish | None]:
        """What to show, the tokens that make it, and how it ended."""
        told = self.shown[event.index].push(event)
        finish: Finish | None = None if event.finish_reason is None else _finish(event)
        return event.text, told, finish


def _finish(event: Event) -> Finish:
    return "stop" if event.finish_reason == "stop" else "length"


def gathered(
    served: ServedModel, handle: Handle, events: Sequence[Event]
) -> list[tuple[str, list[Told], Finish]]:
    """Each continuation of one prompt as a whole."""
    growing = Choices(served, handle)
    texts, tokens, ends = dict[int, str](), dict[int, list[Told]](), dict[int, Finish]()
    for event in events:
        text, told, finish = growing.push(event)
        texts[event.index] = texts.get(event.index, "") + text
        tokens.setdefault(event.index, []).extend(told)
        ends[event.index] = finish or "length"
    return [(texts[index], tokens[index], ends[index]) for index in sorted(texts)]


def cannot(served: ServedModel, what: str) -> str:
    """The sentence for a model that was asked for what it does not do."""
    return (
        f'"{served.id}" does not {what}; it answers '
        f"{', '.join(served.abilities()) or 'nothing else'}."
    )

"""Code shared by completions and chat: engine requests, choices assembled from events, the answer
streamed or at once."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Any, ClassVar, Literal, NotRequired, cast

from anyio import to_thread
from typing_extensions import TypedDict

from ..core.errors import need
from ..core.files import JsonObject
from ..core.generation.sample import Sampling
from . import grammars
from .asgi.replies import EventStream, format_event, refuse
from .engine import Event, Request, RequestHandle, Usage
from .engine.request import Guide
from .inspecting import Inspector
from .logprobs import ScoredToken, TokenBuffer
from .prompts import check_ids
from .registry import ServedModel
from .schemas import GenerationRequest
from .tracking import Context

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


async def engine_request(
    context: Context,
    body: GenerationRequest,
    tokens: Sequence[int],
    max_new: int | None,
    top: int | None,
) -> Request:
    """Engine request for one prompt. Raises HttpError and UserError for unsupported options."""
    served = context.served
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
        client=context.client,
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
    check_ids(stop_ids, served.tokenizer.size, "stop_token_ids")
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


class Choice:
    """One continuation as a response has it: the text, and the tokens whose text is complete."""

    def __init__(
        self,
        context: Context,
        body: GenerationRequest,
        handle: RequestHandle,
        number: int,
        index: int,
    ) -> None:
        self.context, self.body, self.handle = context, body, handle
        self.number, self.index = number, index
        tokenizer, request = context.served.tokenizer, handle.request
        has_text = any(not tokenizer.hides(token) for token in request.tokens[-16:])
        self.buffer = TokenBuffer(tokenizer, has_text)
        self.inspector: Inspector | None = None
        self.collected: tuple[str, list[ScoredToken], Finish] = ("", [], "length")

    def collect(self, event: Event) -> None:
        """Adds an event to what is answered at once."""
        text, tokens, _ = self.collected
        new_text, new_tokens, finish = self.push(event)
        self.collected = text + new_text, tokens + new_tokens, finish or "length"

    def push(self, event: Event) -> tuple[str, list[ScoredToken], Finish | None]:
        """Returns the new text, the tokens that it completes, and the finish reason."""
        if self.body.inspect is not None:
            if self.inspector is None:
                self.inspector = Inspector(self.context.served, self.body, self.handle)
            self.inspector.push(event)
        finish: Finish | None = None
        if event.finish_reason is not None:
            finish = "stop" if event.finish_reason == "stop" else "length"
        return event.text, self.buffer.push(event), finish

    @property
    def is_slow(self) -> bool:
        """True if the next chunk scores a whole prompt."""
        return False

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """Choices of a stream's chunks that report the new text."""
        raise NotImplementedError

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish) -> JsonObject:
        """The whole choice."""
        raise NotImplementedError

    async def inspect(self, choice: JsonObject) -> None:
        """Adds the inspection of the tokens computed since the last call."""
        if self.inspector is not None:
            choice["inspect"] = await self.context.run_exclusively(self.inspector.drain)


class AnswerWriter:
    """Builds the answer to one request with one handle per prompt, streamed or at once."""

    choice_type: ClassVar[type[Choice]]
    id_prefix: ClassVar[str]
    object_type: ClassVar[str]
    chunk_type: ClassVar[str]

    def __init__(
        self, context: Context, body: GenerationRequest, handles: Sequence[RequestHandle]
    ) -> None:
        self.context, self.body, self.handles = context, body, handles
        self.id, self.created = f"{self.id_prefix}-{uuid.uuid4().hex}", int(time.time())
        n = body.n or 1
        self.choices = [
            [
                self.choice_type(context, body, handle, number * n + index, index)
                for index in range(n)
            ]
            for number, handle in enumerate(handles)
        ]

    async def write(self) -> JsonObject | EventStream:
        """The answer, or its stream once the first chunk is there: an early error still gets an
        HTTP status."""
        context = self.context
        if self.body.stream:
            chunks = self._stream()
            first = await context.until_disconnect(anext(chunks))
            return EventStream(_events(first, chunks), b"data: [DONE]\n\n")
        results = await context.results(self.handles)
        answer = await to_thread.run_sync(self._answer, results)
        choices = chain.from_iterable(self.choices)
        for choice, json_choice in zip(choices, answer["choices"], strict=True):
            await choice.inspect(json_choice)
        return answer

    def _head(self, object_type: str) -> JsonObject:
        model = self.context.served.id
        return {"id": self.id, "object": object_type, "created": self.created, "model": model}

    def _answer(self, results: Sequence[Sequence[Event]]) -> JsonObject:
        json_choices, usages = list[JsonObject](), list[Usage]()
        for choices, events in zip(self.choices, results, strict=True):
            for event in events:
                choices[event.index].collect(event)
                usages += [event.usage] if event.usage is not None else []
            json_choices += [choice.answer(*choice.collected) for choice in choices]
        usage = total_usage(usages)
        return {**self._head(self.object_type), "choices": json_choices, "usage": usage}

    async def _stream(self) -> AsyncGenerator[Mapping[str, Any]]:
        """Yields the answer as chunks of one choice each."""
        options, context = self.body.stream_options, self.context
        usages, with_usage = list[Usage](), options is not None and options.include_usage
        head = self._head(self.chunk_type)
        merged = context.merge_events(self.handles)
        async with aclosing(merged) as events:
            async for number, event in events:
                choice = self.choices[number][event.index]
                usages += [event.usage] if event.usage is not None else []
                new = choice.push(event)
                if choice.is_slow:
                    json_choices = await to_thread.run_sync(choice.chunks, *new)
                else:
                    json_choices = choice.chunks(*new)
                for json_choice in json_choices:
                    is_role = "role" in json_choice.get("delta", ())
                    if choice.inspector and not choice.inspector.is_drained and not is_role:
                        await choice.inspect(json_choice)
                    chunk = {**head, "choices": [json_choice]}
                    yield {**chunk, "usage": None} if with_usage else chunk
        if with_usage:
            yield {**head, "choices": [], "usage": total_usage(usages)}


async def _events(
    first: Mapping[str, Any], chunks: AsyncGenerator[Mapping[str, Any]]
) -> AsyncGenerator[bytes]:
    try:
        yield format_event(first)
        async for chunk in chunks:
            yield format_event(chunk)
    finally:
        await chunks.aclose()

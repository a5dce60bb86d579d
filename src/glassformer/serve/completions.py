"""POST /v1/completions and /v1/chat/completions: prompts and conversations continued, streamed or at
once.

    body -> ids -> Request -> the engine's events -> Choice: texts, tokens -> AnswerWriter: JSON

``echo`` adds the prompt of a completion with its log-probabilities; a conversation is rendered by
the model's chat template.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, NotRequired, cast

from anyio import to_thread
from typing_extensions import TypedDict

from ..core.errors import need
from ..core.files import JsonObject
from ..core.generation.sample import Sampling
from . import grammars
from .asgi.limits import MOST_CONTINUATIONS
from .asgi.replies import EventStream, format_event, refuse
from .engine import Event, Guide, Request, RequestHandle, Usage
from .inspecting import Inspection, Inspector, with_inspection
from .logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    CompletionLogprobsWriter,
    ScoredToken,
    TokenBuffer,
    TokenDecoder,
    chat_logprobs,
)
from .prompts import as_list, check_context, check_ids, check_lengths, encode_prompts
from .registry import ServedModel
from .schemas import ChatRequest, CompletionRequest, GenerationRequest, Message
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


def _total_usage(usages: Sequence[Usage | None]) -> UsageObject:
    """Sums the usage of all prompts of a request."""
    prompt, cached, completion = map(sum, zip(*filter(None, usages), strict=True))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class CompletionChoice(TypedDict):
    """One continuation, or an increment of it; ``finish_reason`` is null until the last."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    inspect: NotRequired[Inspection]


class CompletionAnswer(TypedDict):
    """Completion response, or one chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]


class AnsweredMessage(TypedDict):
    """Message of the assistant."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One of the ``n`` replies."""

    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    inspect: NotRequired[Inspection]


class ChatAnswer(TypedDict):
    """Chat response."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject


async def complete(context: Context, body: CompletionRequest) -> JsonObject | EventStream:
    """Continue one or several texts."""
    served = context.served
    context.require(served.continues, "continue texts")
    texts, n = as_list(body.prompt), body.n or 1
    count = len(texts) * n
    message = (
        f"{len(texts)} prompts with n = {n} are {count:,} continuations, and a request may ask for "
        f"{MOST_CONTINUATIONS:,}; send several requests."
    )
    refuse(count > MOST_CONTINUATIONS, message, "n")
    prompt_ids = await encode_prompts(served, texts, body.add_special_tokens is not False)
    max_new = 16 if body.max_tokens is None else body.max_tokens
    for row in prompt_ids:
        check_context(served, row, max_new, "max_tokens")
    request = await engine_request(context, body, prompt_ids[0], max_new, body.logprobs)
    prompt_logprobs = 0 if max_new == 0 else None
    if body.echo and body.logprobs is not None:
        prompt_logprobs = body.logprobs
    request = replace(request, prompt_logprobs=prompt_logprobs)
    requests = [replace(request, tokens=row) for row in prompt_ids]
    if body.inspect is not None or body.edits:
        requests = [with_inspection(served, body, request) for request in requests]
    return await AnswerWriter(
        context, body, CompletionChoiceWriter, await context.submit(requests)
    ).write()


async def chat(context: Context, body: ChatRequest) -> JsonObject | EventStream:
    """Answer a conversation."""
    served = context.served
    context.require(served.continues, "chat")
    prompt = await encode_messages(served, body.messages)
    max_new = body.max_completion_tokens or body.max_tokens
    check_context(served, prompt, 1 if max_new is None else max_new, "messages")
    top = (body.top_logprobs or 0) if body.logprobs else None
    request = await engine_request(context, body, prompt, max_new, top)
    if body.inspect is not None or body.edits:
        request = with_inspection(served, body, request)
    return await AnswerWriter(
        context, body, ChatChoiceWriter, await context.submit([request])
    ).write()


async def encode_messages(served: ServedModel, messages: Sequence[Message]) -> list[int]:
    """Renders messages with the chat template and returns their token ids."""
    template = served.template
    message = (
        f'"{served.id}" has no chat template; start the server with --chat-template FILE, or '
        "use /v1/completions."
    )
    refuse(template is None, message, "model")
    assert template is not None
    rendered = [message.to_template() for message in messages]
    texts = [message["content"] for message in rendered]
    check_lengths(served, texts, "messages")
    return await to_thread.run_sync(partial(template.tokens, rendered))


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
        sampling=_sampling(body),
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


def _sampling(body: GenerationRequest) -> Sampling:
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

    id_prefix: ClassVar[str]
    object_type: ClassVar[str]
    chunk_type: ClassVar[str]

    def __init__(
        self, context: Context, body: Any, handle: RequestHandle, number: int, index: int
    ) -> None:
        self.context, self.body, self.handle = context, body, handle
        self.number, self.index, self.tokenizer = number, index, context.served.tokenizer
        prompt = handle.request.tokens[-16:]
        has_text = any(not self.tokenizer.hides(token) for token in prompt)
        self.buffer = TokenBuffer(self.tokenizer, has_text)
        self.inspector: Inspector | None = None

    def push(self, event: Event) -> tuple[str, list[ScoredToken], Finish | None]:
        """Returns the new text, the tokens that it completes, and the finish reason."""
        if self.body.inspect is not None:
            served, body, handle = self.context.served, self.body, self.handle
            self.inspector = self.inspector or Inspector(served, body, handle)
            self.inspector.push(event)
        finish: Finish | None = None
        if event.finish_reason is not None:
            finish = "stop" if event.finish_reason == "stop" else "length"
        return event.text, self.buffer.push(event), finish

    def whole(self, events: Sequence[Event]) -> JsonObject:
        """The choice of a request's events."""
        texts, tokens, finishes = zip(
            *(self.push(event) for event in events if event.index == self.index), strict=True
        )
        return self.answer("".join(texts), [*chain(*tokens)], finishes[-1] or "length")

    @property
    def is_slow(self) -> bool:
        """True if the next chunk scores a whole prompt."""
        return False

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """Choices of a stream's chunks that report the new text."""
        raise NotImplementedError

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The whole choice."""
        raise NotImplementedError

    async def inspect(self, choice: JsonObject) -> None:
        """Adds the inspection of the tokens computed since the last call."""
        if self.inspector is not None:
            choice["inspect"] = await self.context.run_exclusively(self.inspector.drain)


class CompletionChoiceWriter(Choice):
    """Text and log-probabilities of one choice; with echo the prompt comes first."""

    id_prefix, object_type, chunk_type = "cmpl", "text_completion", "text_completion"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logprobs = CompletionLogprobsWriter(self.tokenizer, self.body.logprobs or 0)
        self.is_prompt_due = bool(self.body.echo)

    @property
    def is_slow(self) -> bool:
        return self.is_prompt_due and self.body.logprobs is not None

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The choice, or an increment of it."""
        tokenizer, logprobs = self.tokenizer, None
        if self.is_prompt_due:
            self.is_prompt_due = False
            text = tokenizer.decode(self.handle.request.tokens) + text
            decoder = TokenDecoder(tokenizer, False)
            prompt_logprobs = self.handle.prompt_logprobs or ()
            tokens = [*(decoder.push(*scored) for scored in prompt_logprobs), *tokens]
        if self.body.logprobs is not None:
            logprobs = self.logprobs.write(tokens)
        return {"index": self.number, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """The increment, where there is any."""
        choice = self.answer(text, tokens, finish)
        has_tokens = choice["logprobs"] is not None and choice["logprobs"]["tokens"]
        return [choice] if choice["text"] or finish is not None or has_tokens else []


class ChatChoiceWriter(Choice):
    """Message of one choice, whole or as deltas."""

    id_prefix, object_type, chunk_type = "chatcmpl", "chat.completion", "chat.completion.chunk"
    is_open = False

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        visible = [token for token in tokens if not token.hidden]  # together they are the text
        return chat_logprobs(self.tokenizer, visible, self.body.top_logprobs or 0)

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The whole message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": self.number,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": finish,
        }

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """Deltas: first the role, then texts, at last the finish reason."""
        deltas = list[JsonObject]()
        if not self.is_open:
            self.is_open = True
            deltas.append(self._delta({"role": "assistant", "content": ""}))
        if text or (self.body.logprobs and tokens):
            deltas.append(self._delta({"content": text}, logprobs=self._logprobs(tokens)))
        if finish is not None:
            deltas.append(self._delta({}, finish_reason=finish))
        return deltas

    def _delta(self, delta: dict[str, str], **fields: Any) -> JsonObject:
        empty = {"index": self.number, "delta": delta, "logprobs": None, "finish_reason": None}
        return empty | fields


class AnswerWriter:
    """Builds the answer to one request with one handle per prompt, streamed or at once."""

    def __init__(
        self,
        context: Context,
        body: GenerationRequest,
        choice_type: type[Choice],
        handles: Sequence[RequestHandle],
    ) -> None:
        self.context, self.body, self.handles = context, body, handles
        self.choice_type, n = choice_type, body.n or 1
        self.id, self.created = f"{choice_type.id_prefix}-{uuid.uuid4().hex}", int(time.time())
        self.choices = [
            [choice_type(context, body, handle, number * n + index, index) for index in range(n)]
            for number, handle in enumerate(handles)
        ]

    async def write(self) -> JsonObject | EventStream:
        """The answer, or its stream once the first chunk is there: an early error still gets an
        HTTP status."""
        context = self.context
        if self.body.stream:
            events = self._stream()
            first = await context.until_disconnect(anext(events))
            return EventStream(events, b"data: [DONE]\n\n", first)
        results = await context.results(self.handles)
        json_choices = await to_thread.run_sync(self._whole, results)
        for choice, json_choice in zip(chain(*self.choices), json_choices, strict=True):
            await choice.inspect(json_choice)
        usage = _total_usage([events[-1].usage for events in results])
        return {**self._head(self.choice_type.object_type), "choices": json_choices, "usage": usage}

    def _head(self, object_type: str) -> JsonObject:
        model = self.context.served.id
        return {"id": self.id, "object": object_type, "created": self.created, "model": model}

    def _whole(self, results: Sequence[Sequence[Event]]) -> list[JsonObject]:
        pairs = zip(self.choices, results, strict=True)
        return [choice.whole(events) for choices, events in pairs for choice in choices]

    async def _stream(self) -> AsyncGenerator[bytes]:
        """Yields the answer as chunks of one choice each."""
        options, context = self.body.stream_options, self.context
        usages, with_usage = list[Usage | None](), options is not None and options.include_usage
        head = self._head(self.choice_type.chunk_type)
        async with aclosing(context.merge_events(self.handles)) as events:
            async for number, event in events:
                choice = self.choices[number][event.index]
                usages.append(event.usage)
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
                    yield format_event({**chunk, "usage": None} if with_usage else chunk)
        if with_usage:
            yield format_event({**head, "choices": [], "usage": _total_usage(usages)})

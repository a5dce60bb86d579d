"""POST /v1/completions and /v1/chat/completions: prompts and conversations continued, streamed or at
once.

    body -> ids -> Request -> the engine's events -> Choice: texts, tokens -> JSON

``echo`` adds the prompt of a completion with its log-probabilities; a conversation is rendered by
the model's chat template. A token comes with its text: what a stop string cuts off is never
answered, neither as text nor as a token.
"""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from ..core.errors import need
from ..core.files import JsonObject
from ..core.generation.sample import Sampling
from . import grammars
from .asgi.event_stream import EventStream, format_event
from .asgi.limits import MOST_CONTINUATIONS, MOST_SCORES, SCORE_BYTES
from .asgi.replies import refuse, to_json
from .engine import Event, Request, RequestHandle, Usage
from .inspecting import Inspection, Inspector, with_inspection
from .schemas import CompletionRequest, GenerationRequest
from .scored_tokens import ScoredToken, TokenBuffer
from .served_models import Context, check_ids

Finish = Literal["stop", "length", "tool_calls"]
CHARACTERS_PER_TOKEN = 16  # that are encoded in the time in which a token is written


class CompletionLogprobs(TypedDict):
    """Parallel lists with one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptDetails(TypedDict):
    """Prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(TypedDict):
    """Generated tokens of thoughts, up to the mark that ends them."""

    reasoning_tokens: int


class UsageObject(TypedDict):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptDetails]
    completion_tokens_details: NotRequired[CompletionDetails]


def _total_usage(
    usages: Sequence[Usage | None], choices: Sequence[Sequence[Choice]]
) -> UsageObject:
    """Sums the usage of all prompts of a request."""
    prompt = cached = completion = 0
    for usage in filter(None, usages):
        prompt += usage.prompt
        cached += usage.cached
        completion += usage.generated
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.reasoning_tokens for row in choices for choice in row)
        },
    }


class CompletionChoice(TypedDict):
    """One continuation, or an increment of it; ``finish_reason`` is null until the last."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    inspect: NotRequired[Inspection]


class AnswerHead(TypedDict):
    """Head of every answer and chunk."""

    id: str
    created: int
    model: str


class CompletionAnswer(AnswerHead):
    """Completion response, or one chunk of a stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]


async def complete(context: Context, body: CompletionRequest) -> JsonObject | EventStream:
    """Continue one or several texts."""
    served = context.served
    context.require("completions", "continue texts")
    count = len(body.prompt) * body.n
    message = (
        f"{len(body.prompt)} prompts with n = {body.n} are {count:,} continuations, and a request "
        f"may ask for {MOST_CONTINUATIONS:,}; send several requests."
    )
    refuse(count > MOST_CONTINUATIONS, message, "n")
    prompts = await context.encode_prompts(body.prompt, body.add_special_tokens)
    for prompt in prompts:
        served.check_context(prompt, body.max_tokens, "max_tokens")
    request = await engine_request(context, body, prompts[0], body.max_tokens, body.logprobs)
    prompt_logprobs = body.logprobs if body.echo else None
    if body.max_tokens == 0:
        prompt_logprobs = prompt_logprobs or 0
    if prompt_logprobs is not None:
        scores = sum(map(len, prompts)) * (1 + prompt_logprobs)
        message = (
            f"The prompts' tokens with their likeliest have {scores:,} log-probabilities, and a "
            f"request may ask for {MOST_SCORES:,}; send several requests, or a smaller logprobs."
        )
        refuse(scores > MOST_SCORES, message, "logprobs")
        context.hold(scores * SCORE_BYTES)
    request = replace(request, prompt_logprobs=prompt_logprobs)
    requests = [replace(request, tokens=prompt) for prompt in prompts]
    return await answer(context, body, CompletionChoiceWriter, requests)


async def engine_request(
    context: Context,
    body: GenerationRequest,
    tokens: Sequence[int],
    max_new: int | None,
    top: int | None,
) -> Request:
    """Engine request for one prompt. Raises HttpError and UserError for unsupported options."""
    tokenizer = context.served.tokenizer
    vocab = context.served.config.embed.vocab
    guide = None
    check_ids(body.stop_token_ids, tokenizer.size, "stop_token_ids")
    names = all(name.isascii() and name.isdigit() and len(name) < 10 for name in body.logit_bias)
    message = 'logit_bias maps token ids to numbers; write the ids as in "50256".'
    refuse(not names, message, "logit_bias")
    if body.grammar is not None:
        need(not body.ignore_eos, "A grammar says where the answer ends; leave out ignore_eos.")
        compile = grammars.guide_factory
        kind, source = body.grammar
        guide = await context.run_heavy(compile, tokenizer, vocab, kind, source, context.client)
    eos = frozenset() if body.ignore_eos else tokenizer.end_ids
    if guide is not None and tokenizer.eos is not None:  # a grammar ends with it
        eos |= {tokenizer.eos}
    return Request(
        tokens,
        sampling=Sampling(
            body.temperature,
            body.top_k if body.top_k > 0 else None,
            body.top_p if body.top_p < 1 else None,
            body.min_p or None,
            body.repetition_penalty,
        ),
        max_new=max_new,
        seed=body.seed,
        n=body.n,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop,
        stop_tokens=[*eos, *body.stop_token_ids],
        logit_bias={int(name): bias for name, bias in body.logit_bias.items()},
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logprobs=top,
        guide=guide,
        client=context.client,
    )


class Choice:
    """One continuation as a response has it: the text, and the tokens whose text is complete."""

    id_prefix = object_type = chunk_type = ""
    is_slow = False  # the next chunk scores a whole prompt
    # what stands before and after the text in a plain chunk's event, once one was written
    around: tuple[str, str] | None = None
    top = 0  # candidates that are written beside each token
    reasoning_tokens = 0  # until now
    is_plain = True  # each piece of text is answered as it comes
    buffer: TokenBuffer | None = None  # where log-probabilities are asked for

    def __init__(
        self, context: Context, body: Any, handle: RequestHandle, number: int, index: int
    ) -> None:
        self.context = context
        self.body = body
        self.handle = handle
        self.number = number
        self.index = index
        self.tokenizer = context.served.tokenizer
        self.inspector = None if body.inspect is None else Inspector(context.served, body, handle)
        if body.logprobs is not None and body.logprobs is not False:
            has_text = not all(map(self.tokenizer.hides, handle.request.tokens[-16:]))
            self.buffer = TokenBuffer(self.tokenizer, has_text)

    def push(self, event: Event) -> tuple[str, list[ScoredToken], Finish | None]:
        """Returns the new text, the tokens that it completes, and the finish reason."""
        if self.inspector is not None:
            self.inspector.push(event)
        reason = event.finish_reason
        finish: Finish | None = reason and ("stop" if reason == "stop" else "length")
        return event.text, self.buffer.push(event) if self.buffer else [], finish

    def size(self, events: int) -> int:
        """Size of the work to write so many events, in characters that are as much work."""
        tokens = events + len(self.handle.prompt if self.is_slow else ())
        return CHARACTERS_PER_TOKEN * tokens * (1 + self.top)

    def whole(self, events: Sequence[Event]) -> JsonObject:
        """The choice of a request's events."""
        texts, tokens, finishes = zip(
            *(self.push(event) for event in events if event.index == self.index), strict=True
        )
        return self.answer("".join(texts), [*chain(*tokens)], finishes[-1] or "length")

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The whole choice."""
        raise NotImplementedError

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """Choices of a stream's chunks that report the new text, where there is any."""
        choice = self.answer(text, tokens, finish)
        has_tokens = choice["logprobs"] is not None and choice["logprobs"]["tokens"]
        return [choice] if choice["text"] or finish is not None or has_tokens else []

    async def inspect(self, choice: JsonObject) -> None:
        """Adds the inspection of the tokens computed since the last call."""
        if self.inspector is not None:
            choice["inspect"] = await self.context.run_heavy(self.inspector.drain)


class CompletionChoiceWriter(Choice):
    """Text and log-probabilities of one choice; with echo the prompt comes first."""

    id_prefix = "cmpl"
    object_type = "text_completion"
    chunk_type = "text_completion"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = 0  # in characters
        self.is_prompt_due = self.body.echo
        self.top = self.body.logprobs or 0
        self.is_slow = self.body.echo and self.body.logprobs is not None

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The choice, or an increment of it."""
        if self.is_prompt_due:
            self.is_prompt_due = self.is_slow = False
            text = self.tokenizer.decode(self.handle.request.tokens) + text
            prompt = list[ScoredToken]()
            first = True
            for token, logprob, top in self.handle.prompt_logprobs or ():
                prompt.append(ScoredToken(self.tokenizer, token, logprob, top, first))
                first = first and prompt[-1].hidden
            tokens = [*prompt, *tokens]
        logprobs = None if self.body.logprobs is None else self._logprobs(tokens)
        return {"index": self.number, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> CompletionLogprobs:
        """Lists of the next tokens."""
        count = self.body.logprobs
        offsets = list[int]()
        tops = list[dict[str, float] | None]()
        for scored in tokens:
            offsets.append(self.offset)
            self.offset += len(self.decoder.decode(scored.raw))
            by_text: dict[str, float] = {}
            for likely in (*scored.candidates(count), scored):  # OpenAI names the token itself too
                by_text.setdefault(likely.text, likely.logprob or 0.0)
            tops.append(None if scored.logprob is None else by_text)
        return {
            "tokens": [scored.text for scored in tokens],
            "token_logprobs": [scored.logprob for scored in tokens],
            "top_logprobs": tops if count else None,
            "text_offset": offsets,
        }


async def answer(
    context: Context, body: GenerationRequest, writer: type[Choice], requests: Sequence[Request]
) -> JsonObject | EventStream:
    """The answer, or its stream once the first chunk is there: an early error still gets an HTTP
    status."""
    served = context.served
    if body.inspect is not None or body.edits or body.directions:
        requests = await with_inspection(context, body, requests)
    handles = await context.submit(requests)
    choices = [
        [writer(context, body, handle, number * body.n + index, index) for index in range(body.n)]
        for number, handle in enumerate(handles)
    ]
    head = {
        "id": f"{writer.id_prefix}-{uuid.uuid4().hex}",
        "object": writer.chunk_type if body.stream else writer.object_type,
        "created": int(time.time()),
        "model": served.id,
    }
    if body.stream:
        events = _stream(context, body, head, handles, choices)
        first = await context.until_disconnect(anext(events))
        channel = handles[0].channel
        return EventStream(events, b"data: [DONE]\n\n", first, lambda: channel.waited)
    results = await context.results(handles)

    pairs = zip(choices, results, strict=True)
    size = sum(
        choice.size(len(events)) for (choice, *_), events in zip(choices, results, strict=True)
    )
    json_choices = await context.run(
        size, lambda: [choice.whole(events) for row, events in pairs for choice in row]
    )
    for choice, json_choice in zip(chain(*choices), json_choices, strict=True):
        await choice.inspect(json_choice)
    usage = _total_usage([events[-1].usage for events in results], choices)
    return {**head, "choices": json_choices, "usage": usage}


async def _stream(
    context: Context,
    body: GenerationRequest,
    head: JsonObject,
    handles: Sequence[RequestHandle],
    choices: Sequence[Sequence[Choice]],
) -> AsyncGenerator[bytes]:
    """Yields the answer as chunks of one choice each."""
    usages = list[Usage | None]()
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    usage = {"usage": None} if with_usage else {}
    async with aclosing(context.events(handles)) as events:
        async for number, event in events:
            choice = choices[number][event.index]
            if choice.around is not None and event.finish_reason is None:
                if event.text:
                    before, after = choice.around
                    yield f"{before}{to_json(event.text)}{after}".encode("utf-8", "replace")
                continue
            usages.append(event.usage)
            new = choice.push(event)
            if choice.is_slow:
                json_choices = await context.run(choice.size(1), choice.chunks, *new)
            else:
                json_choices = choice.chunks(*new)
            for json_choice in json_choices:
                is_role = "role" in json_choice.get("delta", ())
                if choice.inspector and not choice.inspector.is_drained and not is_role:
                    await choice.inspect(json_choice)
                yield format_event({**head, "choices": [json_choice], **usage})
            if choice.is_plain and not choice.buffer and choice.inspector is None:
                plain = format_event({**head, "choices": choice.chunks("\0", (), None), **usage})
                before, _, after = plain.decode().rpartition(to_json("\0"))
                choice.around = before, after
    if with_usage:
        yield format_event({**head, "choices": [], "usage": _total_usage(usages, choices)})

"""POST /v1/completions: continuations of prompts, streamed or at once; ``echo`` adds the prompt
with its log-probabilities."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Literal, NotRequired

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from typing_extensions import TypedDict

from ..engine import Event, Handle, TokenLogprob, Usage
from .errors import refuse
from .following import RequestStats, RequestTracker, run_exclusively, until_disconnect
from .generating import (
    Choices,
    Finish,
    ResponseHead,
    UsageObject,
    collect_choices,
    engine_request,
    response_head,
    total_usage,
    unsupported_message,
)
from .inspecting import Inspection, Inspector, with_inspection
from .limits import MOST_CONTINUATIONS
from .logprobs import CompletionLogprobs, CompletionLogprobsWriter, ScoredToken, TokenDecoder
from .prompts import as_list, check_context, encode_prompts
from .registry import ServedModel
from .schemas import CompletionRequest
from .streaming import EventStream, start_stream


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


async def complete(
    http: HttpRequest,
    served: ServedModel,
    body: CompletionRequest,
    followers: RequestTracker,
    tally: RequestStats,
    client: str,
) -> CompletionAnswer | EventStream:
    """Answers one completion request, streamed or at once."""
    refuse(not served.continues, unsupported_message(served, "continue texts"), "model")
    texts, n = as_list(body.prompt), body.n or 1
    message = (
        f"{len(texts)} prompts with n = {n} are {len(texts) * n:,} continuations, and a "
        "request may ask for "
    )
    refuse(
        len(texts) * n > MOST_CONTINUATIONS,
        f"{message}{MOST_CONTINUATIONS:,}; send several requests.",
        "n",
    )
    prompt_ids = await encode_prompts(served, texts, body.add_special_tokens is not False)
    max_new = 16 if body.max_tokens is None else body.max_tokens
    for row in prompt_ids:
        check_context(served, row, max_new, "max_tokens")
    request = await engine_request(served, body, prompt_ids[0], max_new, body.logprobs, client)
    prompt_logprobs = (
        body.logprobs if body.echo and body.logprobs is not None else 0 if max_new == 0 else None
    )
    request = replace(request, prompt_logprobs=prompt_logprobs)
    requests = [with_inspection(served, body, replace(request, tokens=row)) for row in prompt_ids]
    handles = await until_disconnect(http, followers.submit_async(served, requests))
    writer = CompletionWriter(served, body, response_head(served, "cmpl"))
    if body.stream:
        return EventStream(
            await until_disconnect(http, start_stream(writer.stream(followers, handles, tally)))
        )
    results = await until_disconnect(http, followers.results(handles, tally))
    answer = await to_thread.run_sync(writer.answer, handles, results)
    if body.inspect is not None:
        for choice in answer["choices"]:
            number, index = divmod(choice["index"], writer.n)
            inspector = Inspector(served, body, handles[number], index).push(results[number])
            choice["inspect"] = await until_disconnect(http, run_exclusively(inspector.drain))
    return answer


class CompletionWriter:
    """Builds the response to one request, streamed or at once."""

    def __init__(self, served: ServedModel, body: CompletionRequest, head: ResponseHead) -> None:
        self.served, self.body, self.head = served, body, head
        self.n = body.n or 1

    def _answer(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        head = self.head
        return {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        }

    def answer(
        self, handles: Sequence[Handle], results: Sequence[Sequence[Event]]
    ) -> CompletionAnswer:
        """Builds the complete response."""
        choices, usages = list[CompletionChoice](), list[Usage]()
        for number, (handle, events) in enumerate(zip(handles, results, strict=True)):
            for index, (text, tokens, finish) in enumerate(
                collect_choices(self.served, handle, events)
            ):
                writer = ChoiceWriter(self.served, self.body, handle)
                opening = writer.prompt_text() if self.body.echo else ""
                choices.append(
                    _choice(
                        number * self.n + index, opening + text, writer.logprobs(tokens), finish
                    )
                )
            usages += [event.usage for event in events if event.usage is not None]
        return {**self._answer(choices), "usage": total_usage(usages)}

    async def stream(
        self, followers: RequestTracker, handles: Sequence[Handle], tally: RequestStats
    ) -> AsyncGenerator[CompletionAnswer]:
        """Yields the response as chunks of one choice each."""
        options = self.body.stream_options
        usages, with_usage = list[Usage](), options is not None and options.include_usage
        assemblers = [Choices(self.served, handle) for handle in handles]
        writers, inspectors = dict[int, list[ChoiceWriter]](), dict[int, Inspector]()
        async with aclosing(followers.merge_events(handles, tally)) as events:
            async for number, event in events:
                choice_index = number * self.n + event.index
                if number not in writers:
                    writers[number] = self._writers(handles[number])
                writer = writers[number][event.index]
                if self.body.inspect is not None:
                    inspectors.setdefault(
                        choice_index,
                        Inspector(self.served, self.body, handles[number], event.index),
                    ).push([event])
                text, tokens, finish = assemblers[number].push(event)
                usages += [event.usage] if event.usage is not None else []
                text = (
                    writer.prompt_text() + text
                    if self.body.echo and not writer.prompt_written
                    else text
                )
                scored = (
                    not writer.prompt_listed and self.body.echo and self.body.logprobs is not None
                )
                logprobs = (
                    await to_thread.run_sync(writer.logprobs, tokens)
                    if scored
                    else writer.logprobs(tokens)
                )
                if text or finish is not None or (logprobs is not None and logprobs["tokens"]):
                    choice = _choice(choice_index, text, logprobs, finish)
                    if self.body.inspect is not None:
                        choice["inspect"] = await run_exclusively(inspectors[choice_index].drain)
                    chunk = self._answer([choice])
                    yield {**chunk, "usage": None} if with_usage else chunk
        if with_usage:
            yield {**self._answer([]), "usage": total_usage(usages)}

    def _writers(self, handle: Handle) -> list[ChoiceWriter]:
        return [ChoiceWriter(self.served, self.body, handle) for _ in range(self.n)]


def _choice(
    index: int, text: str, logprobs: CompletionLogprobs | None, finish: Finish | None
) -> CompletionChoice:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class ChoiceWriter:
    """Text and log-probabilities of one choice; with echo the prompt comes first."""

    def __init__(self, served: ServedModel, body: CompletionRequest, handle: Handle) -> None:
        self.served, self.body, self.handle = served, body, handle
        self.form = CompletionLogprobsWriter(served.tokenizer, body.logprobs or 0)
        self.prompt_written = self.prompt_listed = False

    def prompt_text(self) -> str:
        """Returns the prompt text and marks it as written."""
        self.prompt_written = True
        return self.served.tokenizer.decode(self.handle.request.tokens)

    def logprobs(self, tokens: Sequence[ScoredToken]) -> CompletionLogprobs | None:
        """Log-probability lists of ``tokens``, preceded once by the prompt's."""
        if self.body.logprobs is None:
            return None
        scored: list[TokenLogprob] = []
        if self.body.echo and not self.prompt_listed:
            scored = self.handle.prompt_logprobs or []
        self.prompt_listed = True
        decoder = TokenDecoder(self.served.tokenizer, False)
        prompt = [decoder.push(token.token, token.logprob, token.top) for token in scored]
        return self.form.write([*prompt, *tokens])

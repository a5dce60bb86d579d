"""POST /v1/completions: texts continued, whole or as a stream; with echo, the prompt with its own
log-probabilities."""

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
from .following import Followers, Tally, alone, unless_gone
from .generating import (
    Choices,
    Finish,
    Head,
    UsageObject,
    cannot,
    gathered,
    head,
    request_of,
    usage_of,
)
from .inspecting import Inspection, Inspector, watched
from .limits import MOST_CONTINUATIONS
from .logprobs import CompletionForm, CompletionLogprobs, Pieces, Told
from .prompts import check_context, listed, prompts
from .registry import ServedModel
from .schemas import CompletionRequest
from .streaming import EventStream, begun


class CompletionChoice(TypedDict):
    """One continuation, or a piece of it; ``finish_reason`` is null until the last."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    inspect: NotRequired[Inspection]


class CompletionAnswer(TypedDict):
    """An answer, or in a stream a part of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]


async def complete(
    http: HttpRequest,
    served: ServedModel,
    asked: CompletionRequest,
    followers: Followers,
    tally: Tally,
    client: str,
) -> CompletionAnswer | EventStream:
    """Answer one request."""
    refuse(not served.continues, cannot(served, "continue texts"), "model")
    given, n = listed(asked.prompt), asked.n or 1
    said = (
        f"{len(given)} prompts with n = {n} are {len(given) * n:,} continuations, and a "
        "request may ask for "
    )
    refuse(
        len(given) * n > MOST_CONTINUATIONS,
        f"{said}{MOST_CONTINUATIONS:,}; send several requests.",
        "n",
    )
    rows = await prompts(served, given, asked.add_special_tokens is not False)
    new = 16 if asked.max_tokens is None else asked.max_tokens
    for row in rows:
        check_context(served, row, new, "max_tokens")
    request = await request_of(served, asked, rows[0], new, asked.logprobs, client)
    scored = (
        asked.logprobs if asked.echo and asked.logprobs is not None else 0 if new == 0 else None
    )
    request = replace(request, prompt_logprobs=scored)
    made = [watched(served, asked, replace(request, tokens=row)) for row in rows]
    handles = await unless_gone(http, followers.submitted(served, made))
    form = Form(served, asked, head(served, "cmpl"))
    if asked.stream:
        return EventStream(await unless_gone(http, begun(form.stream(followers, handles, tally))))
    results = await unless_gone(http, followers.results(handles, tally))
    answer = await to_thread.run_sync(form.answer, handles, results)
    if asked.inspect is not None:
        for choice in answer["choices"]:
            number, index = divmod(choice["index"], form.n)
            seen = Inspector(served, asked, handles[number], index).push(results[number])
            choice["inspect"] = await unless_gone(http, alone(seen.part))
    return answer


class Form:
    """Makes the answer to one request."""

    def __init__(self, served: ServedModel, asked: CompletionRequest, head: Head) -> None:
        self.served, self.asked, self.head = served, asked, head
        self.n = asked.n or 1

    def _answer(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        one = self.head
        return {
            "id": one.id,
            "object": "text_completion",
            "created": one.created,
            "model": one.model,
            "choices": choices,
        }

    def answer(
        self, handles: Sequence[Handle], results: Sequence[Sequence[Event]]
    ) -> CompletionAnswer:
        """The whole."""
        choices, usages = list[CompletionChoice](), list[Usage]()
        for number, (handle, events) in enumerate(zip(handles, results, strict=True)):
            for index, (text, told, finish) in enumerate(gathered(self.served, handle, events)):
                writer = Writer(self.served, self.asked, handle)
                opening = writer.opening() if self.asked.echo else ""
                choices.append(
                    _choice(number * self.n + index, opening + text, writer.tokens(told), finish)
                )
            usages += [event.usage for event in events if event.usage is not None]
        return {**self._answer(choices), "usage": usage_of(usages)}

    async def stream(
        self, followers: Followers, handles: Sequence[Handle], tally: Tally
    ) -> AsyncGenerator[CompletionAnswer]:
        """In parts, a choice each."""
        options = self.asked.stream_options
        usages, told_usage = list[Usage](), options is not None and options.include_usage
        growing = [Choices(self.served, handle) for handle in handles]
        writers, looks = dict[int, list[Writer]](), dict[int, Inspector]()
        async with aclosing(followers.merged(handles, tally)) as events:
            async for number, event in events:
                place = number * self.n + event.index
                if number not in writers:
                    writers[number] = self._writers(handles[number])
                writer = writers[number][event.index]
                if self.asked.inspect is not None:
                    looks.setdefault(
                        place, Inspector(self.served, self.asked, handles[number], event.index)
                    ).push([event])
                text, told, finish = growing[number].push(event)
                usages += [event.usage] if event.usage is not None else []
                text = writer.opening() + text if self.asked.echo and not writer.opened else text
                scored = not writer.listed and self.asked.echo and self.asked.logprobs is not None
                logprobs = (
                    await to_thread.run_sync(writer.tokens, told) if scored else writer.tokens(told)
                )
                if text or finish is not None or (logprobs is not None and logprobs["tokens"]):
                    choice = _choice(place, text, logprobs, finish)
                    if self.asked.inspect is not None:
                        choice["inspect"] = await alone(looks[place].part)
                    chunk = self._answer([choice])
                    yield {**chunk, "usage": None} if told_usage else chunk
        if told_usage:
            yield {**self._answer([]), "usage": usage_of(usages)}

    def _writers(self, handle: Handle) -> list[Writer]:
        return [Writer(self.served, self.asked, handle) for _ in range(self.n)]


def _choice(
    place: int, text: str, logprobs: CompletionLogprobs | None, finish: Finish | None
) -> CompletionChoice:
    return {"index": place, "text": text, "logprobs": logprobs, "finish_reason": finish}


class Writer:
    """One choice's text and tokens; with echo the prompt comes first."""

    def __init__(self, served: ServedModel, asked: CompletionRequest, handle: Handle) -> None:
        self.served, self.asked, self.handle = served, asked, handle
        self.form = CompletionForm(served.tokenizer, asked.logprobs or 0)
        self.opened = self.listed = False

    def opening(self) -> str:
        """The prompt, once."""
        self.opened = True
        return self.served.tokenizer.decode(self.handle.request.tokens)

    def tokens(self, told: Sequence[Told]) -> CompletionLogprobs | None:
        """The lists of these tokens, the prompt's before the first."""
        if self.asked.logprobs is None:
            return None
        scored: list[TokenLogprob] = []
        if self.asked.echo and not self.listed:
            scored = self.handle.prompt_logprobs or []
        self.listed = True
        pieces = Pieces(self.served.tokenizer, False)
        prompt = [pieces.push(one.token, one.logprob, one.top) for one in scored]
        return self.form.part([*prompt, *told])

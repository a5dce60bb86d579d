"""POST /v1/chat/completions: a conversation as the model's own template writes it, and the answer
to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal, NotRequired

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from typing_extensions import TypedDict

from ..engine import Event, Handle
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
from .logprobs import ChatLogprobs, Told, chat_logprobs
from .prompts import check_context, check_lengths
from .registry import ServedModel
from .schemas import ChatRequest
from .streaming import EventStream, begun


class AnsweredMessage(TypedDict):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    inspect: NotRequired[Inspection]


class ChatAnswer(TypedDict):
    """The whole."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject


class Delta(TypedDict):
    """A piece of a message; the first says whose it is."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatPiece(TypedDict):
    """A piece of one answer; ``finish_reason`` is null until the last."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    inspect: NotRequired[Inspection]


class ChatChunk(TypedDict):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatPiece]
    usage: NotRequired[UsageObject | None]


async def chat(
    http: HttpRequest,
    served: ServedModel,
    asked: ChatRequest,
    followers: Followers,
    tally: Tally,
    client: str,
) -> ChatAnswer | EventStream:
    """Answer one request."""
    refuse(not served.continues, cannot(served, "chat"), "model")
    row = await conversation(served, asked)
    new = asked.max_completion_tokens or asked.max_tokens
    check_context(served, row, 1 if new is None else new, "messages")
    top = asked.top_logprobs or 0
    request = await request_of(served, asked, row, new, top if asked.logprobs else None, client)
    handles = await unless_gone(
        http, followers.submitted(served, [watched(served, asked, request)])
    )
    form = Form(served, asked, head(served, "chatcmpl"), handles[0])
    if asked.stream:
        return EventStream(await unless_gone(http, begun(form.stream(followers, tally))))
    (events,) = await unless_gone(http, followers.results(handles, tally))
    answer = await to_thread.run_sync(form.answer, events)
    for choice in answer["choices"] if asked.inspect is not None else ():
        seen = Inspector(served, asked, handles[0], choice["index"]).push(events)
        choice["inspect"] = await unless_gone(http, alone(seen.part))
    return answer


async def conversation(served: ServedModel, asked: ChatRequest) -> list[int]:
    """The messages as ids."""
    template = served.template
    said = (
        f'"{served.id}" has no chat template; start the server with --chat-template FILE, or '
        "use /v1/completions."
    )
    refuse(template is None, said, "model")
    assert template is not None
    messages = [one.to_template() for one in asked.messages]
    texts = [one["content"] for one in messages]
    check_lengths(texts, served.characters, served.context, "messages")
    return await to_thread.run_sync(partial(template.tokens, messages))


class Form:
    """Makes the answer to one request."""

    def __init__(self, served: ServedModel, asked: ChatRequest, head: Head, handle: Handle) -> None:
        self.served, self.asked, self.head, self.handle = served, asked, head, handle

    def _logprobs(self, told: Sequence[Told]) -> ChatLogprobs | None:
        if not self.asked.logprobs:
            return None
        written = [one for one in told if not one.hidden]  # together they are the text
        return chat_logprobs(self.served.tokenizer, written, self.asked.top_logprobs or 0)

    def answer(self, events: Sequence[Event]) -> ChatAnswer:
        """The whole."""
        one, choices = self.head, list[ChatChoice]()
        for index, (text, told, finish) in enumerate(gathered(self.served, self.handle, events)):
            said: AnsweredMessage = {"role": "assistant", "content": text, "refusal": None}
            logprobs = self._logprobs(told)
            choices.append(
                {"index": index, "message": said, "logprobs": logprobs, "finish_reason": finish}
            )
        return {
            "id": one.id,
            "object": "chat.completion",
            "created": one.created,
            "model": one.model,
            "choices": choices,
            "usage": usage_of([event.usage for event in events if event.usage is not None]),
        }

    async def stream(self, followers: Followers, tally: Tally) -> AsyncGenerator[ChatChunk]:
        """In pieces."""
        options = self.asked.stream_options
        with_usage = options is not None and options.include_usage
        growing, opened, usage = Choices(self.served, self.handle), set[int](), None
        looks = dict[int, Inspector]()
        async with aclosing(followers.events(self.handle, tally)) as events:
            async for event in events:
                text, told, finish = growing.push(event)
                usage = event.usage or usage
                if event.index not in opened:
                    opened.add(event.index)
                    yield self._chunk(
                        event.index, {"role": "assistant", "content": ""}, None, None, with_usage
                    )
                if self.asked.inspect is not None:
                    looks.setdefault(
                        event.index, Inspector(self.served, self.asked, self.handle, event.index)
                    )
                    looks[event.index].push([event])
                if text or (self.asked.logprobs and told):
                    chunk = self._chunk(
                        event.index, {"content": text}, self._logprobs(told), None, with_usage
                    )
                    if event.index in looks:
                        chunk["choices"][0]["inspect"] = await alone(looks[event.index].part)
                    yield chunk
                if finish is not None:
                    chunk = self._chunk(event.index, {}, None, finish, with_usage)
                    if event.index in looks and not looks[event.index].whole:
                        chunk["choices"][0]["inspect"] = await alone(looks[event.index].part)
                    yield chunk
        if with_usage and usage is not None:
            yield {**self._open(), "choices": [], "usage": usage_of([usage])}

    def _open(self) -> ChatChunk:
        one = self.head
        return {
            "id": one.id,
            "object": "chat.completion.chunk",
            "created": one.created,
            "model": one.model,
            "choices": [],
        }

    def _chunk(
        self,
        index: int,
        delta: Delta,
        logprobs: ChatLogprobs | None,
        finish: Finish | None,
        with_usage: bool,
    ) -> ChatChunk:
        piece: ChatPiece = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        chunk: ChatChunk = {**self._open(), "choices": [piece]}
        return {**chunk, "usage": None} if with_usage else chunk

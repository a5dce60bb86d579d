"""POST /v1/chat/completions: a conversation rendered by the model's chat template, and its
reply."""

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
from .logprobs import ChatLogprobs, ScoredToken, chat_logprobs
from .prompts import check_context, check_lengths
from .registry import ServedModel
from .schemas import ChatRequest
from .streaming import EventStream, start_stream


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
    """The whole."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject


class Delta(TypedDict):
    """Increment of a message; only the first has a role."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    """Increment of one reply; ``finish_reason`` is null until the last."""

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
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageObject | None]


async def chat(
    http: HttpRequest,
    served: ServedModel,
    body: ChatRequest,
    followers: RequestTracker,
    tally: RequestStats,
    client: str,
) -> ChatAnswer | EventStream:
    """Answers one chat request, streamed or at once."""
    refuse(not served.continues, unsupported_message(served, "chat"), "model")
    prompt = await encode_messages(served, body)
    new = body.max_completion_tokens or body.max_tokens
    check_context(served, prompt, 1 if new is None else new, "messages")
    top = body.top_logprobs or 0
    request = await engine_request(
        served, body, prompt, new, top if body.logprobs else None, client
    )
    handles = await until_disconnect(
        http, followers.submit_async(served, [with_inspection(served, body, request)])
    )
    writer = ChatWriter(served, body, response_head(served, "chatcmpl"), handles[0])
    if body.stream:
        return EventStream(
            await until_disconnect(http, start_stream(writer.stream(followers, tally)))
        )
    (events,) = await until_disconnect(http, followers.results(handles, tally))
    answer = await to_thread.run_sync(writer.answer, events)
    for choice in answer["choices"] if body.inspect is not None else ():
        inspector = Inspector(served, body, handles[0], choice["index"]).push(events)
        choice["inspect"] = await until_disconnect(http, run_exclusively(inspector.drain))
    return answer


async def encode_messages(served: ServedModel, body: ChatRequest) -> list[int]:
    """Renders messages with the chat template and returns their token ids."""
    template = served.template
    message = (
        f'"{served.id}" has no chat template; start the server with --chat-template FILE, or '
        "use /v1/completions."
    )
    refuse(template is None, message, "model")
    assert template is not None
    messages = [message.to_template() for message in body.messages]
    texts = [message["content"] for message in messages]
    check_lengths(texts, served.characters, served.context, "messages")
    return await to_thread.run_sync(partial(template.tokens, messages))


class ChatWriter:
    """Builds the response to one request, streamed or at once."""

    def __init__(
        self, served: ServedModel, body: ChatRequest, head: ResponseHead, handle: Handle
    ) -> None:
        self.served, self.body, self.head, self.handle = served, body, head, handle

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        visible = [token for token in tokens if not token.hidden]  # together they are the text
        return chat_logprobs(self.served.tokenizer, visible, self.body.top_logprobs or 0)

    def answer(self, events: Sequence[Event]) -> ChatAnswer:
        """The whole."""
        head, choices = self.head, list[ChatChoice]()
        for index, (text, tokens, finish) in enumerate(
            collect_choices(self.served, self.handle, events)
        ):
            message: AnsweredMessage = {"role": "assistant", "content": text, "refusal": None}
            logprobs = self._logprobs(tokens)
            choices.append(
                {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}
            )
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": choices,
            "usage": total_usage([event.usage for event in events if event.usage is not None]),
        }

    async def stream(
        self, followers: RequestTracker, tally: RequestStats
    ) -> AsyncGenerator[ChatChunk]:
        """Yields the response as chunks."""
        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        choices, opened, usage = Choices(self.served, self.handle), set[int](), None
        inspectors = dict[int, Inspector]()
        async with aclosing(followers.events(self.handle, tally)) as events:
            async for event in events:
                text, tokens, finish = choices.push(event)
                usage = event.usage or usage
                if event.index not in opened:
                    opened.add(event.index)
                    yield self._chunk(
                        event.index, {"role": "assistant", "content": ""}, None, None, with_usage
                    )
                if self.body.inspect is not None:
                    inspectors.setdefault(
                        event.index, Inspector(self.served, self.body, self.handle, event.index)
                    )
                    inspectors[event.index].push([event])
                if text or (self.body.logprobs and tokens):
                    chunk = self._chunk(
                        event.index, {"content": text}, self._logprobs(tokens), None, with_usage
                    )
                    if event.index in inspectors:
                        chunk["choices"][0]["inspect"] = await run_exclusively(
                            inspectors[event.index].drain
                        )
                    yield chunk
                if finish is not None:
                    chunk = self._chunk(event.index, {}, None, finish, with_usage)
                    if event.index in inspectors and not inspectors[event.index].is_drained:
                        chunk["choices"][0]["inspect"] = await run_exclusively(
                            inspectors[event.index].drain
                        )
                    yield chunk
        if with_usage and usage is not None:
            yield {**self._empty_chunk(), "choices": [], "usage": total_usage([usage])}

    def _empty_chunk(self) -> ChatChunk:
        head = self.head
        return {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
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
        piece: ChatChunkChoice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        chunk: ChatChunk = {**self._empty_chunk(), "choices": [piece]}
        return {**chunk, "usage": None} if with_usage else chunk

"""POST /v1/chat/completions: a conversation rendered by the model's chat template, and its
reply."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NotRequired

from anyio import to_thread
from typing_extensions import TypedDict

from ..core.files import JsonObject
from .asgi.replies import EventStream, refuse
from .generating import AnswerWriter, Choice, Finish, UsageObject, engine_request
from .inspecting import Inspection, with_inspection
from .logprobs import ChatLogprobs, ScoredToken, chat_logprobs
from .prompts import check_context, check_lengths
from .registry import ServedModel
from .schemas import ChatRequest, Message
from .tracking import Context


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


async def chat(context: Context, body: ChatRequest) -> JsonObject | EventStream:
    """Answer a conversation."""
    served = context.served
    context.require(served.continues, "chat")
    prompt = await encode_messages(served, body.messages)
    max_new = body.max_completion_tokens or body.max_tokens
    check_context(served, prompt, 1 if max_new is None else max_new, "messages")
    top = (body.top_logprobs or 0) if body.logprobs else None
    request = await engine_request(context, body, prompt, max_new, top)
    request = with_inspection(served, body, request)
    return await ChatWriter(context, body, await context.submit([request])).write()


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


class ChatChoiceWriter(Choice):
    """Message of one choice, whole or as deltas."""

    body: ChatRequest
    is_open = False

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        visible = [token for token in tokens if not token.hidden]  # together they are the text
        return chat_logprobs(self.context.served.tokenizer, visible, self.body.top_logprobs or 0)

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish) -> JsonObject:
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


class ChatWriter(AnswerWriter):
    """Chat response."""

    choice_type = ChatChoiceWriter
    id_prefix, object_type, chunk_type = "chatcmpl", "chat.completion", "chat.completion.chunk"

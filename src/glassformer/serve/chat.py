"""POST /v1/chat/completions: a conversation, rendered by the model's chat template, answered as a completion
is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from ..core.files import JsonObject
from .asgi.body_errors import field_error
from .asgi.limits import MOST_MESSAGES
from .asgi.replies import EventStream, refuse
from .completions import (
    AnswerHead,
    Choice,
    Finish,
    ScoredToken,
    UsageObject,
    answer,
    engine_request,
)
from .inspecting import Inspection
from .schemas import Count, GenerationRequest, Logprobs, Name, RequestBody, example
from .served_models import Context


class MessagePart(RequestBody):
    """A part of a message; only texts are read, and nothing is fetched."""

    type: Name
    text: str | None = None

    @model_validator(mode="after")
    def _text(self) -> Self:
        if self.type != "text" or self.text is None:
            raise field_error(
                'a part of a message is {"type": "text", "text": "..."}; images, sounds and '
                "files are not read."
            )
        return self


class Message(RequestBody):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        str | Annotated[list[MessagePart], Field(min_length=1, max_length=MOST_MESSAGES)] | None
    ) = None
    # no special token can hide in it
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            value.get("role") in ("tool", "function") or value.get("tool_calls")
        ):
            raise field_error(
                "messages of tools are not supported yet; send those of system, user and assistant."
            )
        return value

    @model_validator(mode="after")
    def _content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise field_error(
                "content is missing; give a text, which only an assistant's message may lack."
            )
        return self

    def to_template(self) -> dict[str, str]:
        """The fields that templates read; the content as one text."""
        content = self.content or ""
        text = (
            content if isinstance(content, str) else "".join(piece.text or "" for piece in content)
        )
        return {"role": self.role, "content": text} | ({"name": self.name} if self.name else {})


Messages = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions"""

    model_config = example(
        messages=[{"role": "user", "content": "Who are you?"}], max_tokens=8, seed=1
    )

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tool_choice: Literal["none", "auto"] | None = None
    logprobs: bool = False
    top_logprobs: Logprobs | None = None

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs needs logprobs: true; give both.")
        return self


class TopLogprob(TypedDict):
    """Candidate token at a position; ``bytes`` are null for a special token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    """Sampled token with the top candidates at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of one message."""

    content: list[ChatTokenLogprob]


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


class ChatAnswer(AnswerHead):
    """Chat response."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageObject


async def chat(context: Context, body: ChatRequest) -> JsonObject | EventStream:
    """Answer a conversation."""
    served = context.served
    context.require("completions", "chat")
    prompt = await encode_messages(context, body.messages)
    max_new = body.max_completion_tokens or body.max_tokens
    served.check_context(prompt, 1 if max_new is None else max_new, "messages")
    top = (body.top_logprobs or 0) if body.logprobs else None
    request = await engine_request(context, body, prompt, max_new, top)
    return await answer(context, body, ChatChoiceWriter, [request])


async def encode_messages(context: Context, messages: Sequence[Message]) -> list[int]:
    """Renders messages with the chat template and returns their token ids."""
    served = context.served
    template = served.template
    message = (
        f'"{served.id}" has no chat template; start the server with --chat-template FILE, or '
        "use /v1/completions."
    )
    refuse(template is None, message, "model")
    assert template is not None
    rendered = [message.to_template() for message in messages]
    texts = [message["content"] for message in rendered]
    served.check_lengths(texts, "messages")
    return await context.run(sum(map(len, texts)), template.tokens, rendered)


class ChatChoiceWriter(Choice):
    """Message of one choice, whole or as deltas."""

    id_prefix = "chatcmpl"
    object_type = "chat.completion"
    chunk_type = "chat.completion.chunk"
    is_open = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.top = self.body.top_logprobs or 0

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None

        def entry(scored: ScoredToken) -> TopLogprob:
            raw = None if scored.hidden else list(scored.raw)
            logprob = scored.logprob or 0.0
            return {"token": scored.text, "logprob": logprob, "bytes": raw}

        count = self.body.top_logprobs or 0
        content = list[ChatTokenLogprob]()
        for scored in tokens:
            if not scored.hidden:  # those that are not are the text
                top = [entry(likely) for likely in scored.candidates(count)]
                content.append({**entry(scored), "top_logprobs": top})
        return {"content": content}

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The whole message."""
        return {
            "index": self.number,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(tokens),
            "finish_reason": finish,
        }

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """Deltas: first the role, then texts, at last the finish reason."""
        deltas = [] if self.is_open else [self._delta({"role": "assistant", "content": ""})]
        self.is_open = True
        if text or (self.body.logprobs and tokens):
            deltas.append(self._delta({"content": text}, logprobs=self._logprobs(tokens)))
        if finish is not None:
            deltas.append(self._delta({}, finish_reason=finish))
        return deltas

    def _delta(self, delta: dict[str, str], **fields: Any) -> JsonObject:
        empty = {"index": self.number, "delta": delta, "logprobs": None, "finish_reason": None}
        return empty | fields

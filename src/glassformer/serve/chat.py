"""POST /v1/chat/completions: a conversation, rendered by the model's chat template, answered as a completion
is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import Field, JsonValue, TypeAdapter, model_validator
from typing_extensions import TypedDict

from ..core.files import JsonObject
from .asgi.body_errors import field_error
from .asgi.event_stream import EventStream
from .asgi.limits import MOST_MESSAGES
from .asgi.replies import refuse
from .completions import (
    AnswerHead,
    Choice,
    Finish,
    UsageObject,
    answer,
    engine_request,
)
from .engine import Event
from .inspecting import Inspection
from .schemas import Count, GenerationRequest, Logprobs, Name, RequestBody, example
from .scored_tokens import ScoredToken
from .served_models import Context
from .tools import THOUGHTS, AnswerReader, call_format, grammar

# no special token can hide in it
PlainName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
ARGUMENTS = TypeAdapter(dict[str, JsonValue])


class TextPart(RequestBody):
    """A part of a message; only texts are read, and nothing is fetched."""

    text: str


class MessagePart(TextPart):
    """A part of a message of a chat."""

    type: Literal["text"]


class CalledFunction(RequestBody):
    """A function that an assistant called, with its arguments as a JSON text."""

    name: PlainName
    arguments: str = "{}"

    @model_validator(mode="after")
    def _object(self) -> Self:
        try:
            ARGUMENTS.validate_json(self.arguments)
        except ValueError:  # one that is nested without end, too
            raise field_error(
                "arguments of a tool call are a JSON object, written as a text."
            ) from None
        return self


class ToolCall(RequestBody):
    """A call in an assistant's message."""

    id: Name = ""
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(RequestBody):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        str | Annotated[list[MessagePart], Field(min_length=1, max_length=MOST_MESSAGES)] | None
    ) = None
    name: PlainName | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = Field([], max_length=MOST_MESSAGES)
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise field_error(
                "content is missing; give a text, which only an assistant's message may lack."
            )
        if self.tool_calls and self.role != "assistant":
            raise field_error("tool_calls stand in an assistant's message alone.")
        return self

    def to_template(self) -> JsonObject:
        """The fields that templates read; the content as one text, arguments as an object."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(piece.text for piece in content)
        fields: JsonObject = {"role": self.role, "content": text}
        for name in ("name", "reasoning_content", "tool_call_id"):
            if value := getattr(self, name):
                fields[name] = value
        if self.tool_calls:
            fields["tool_calls"] = [call.model_dump(exclude={"index"}) for call in self.tool_calls]
            for call in fields["tool_calls"]:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return fields


Messages = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]


class Function(RequestBody):
    """A function that the model may call; the arguments keep the schema, whatever ``strict`` says."""

    name: PlainName
    description: str | None = None
    parameters: dict[str, JsonValue] = Field({"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(RequestBody):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class ChosenFunction(RequestBody):
    """The name of the function that has to be called."""

    name: Name


class ToolChoice(RequestBody):
    """The tool that has to be called."""

    type: Literal["function"]
    function: ChosenFunction


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions"""

    model_config = example(
        messages=[{"role": "user", "content": "Who are you?"}], max_tokens=8, seed=1
    )

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tools: list[Tool] = Field([], max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice = "auto"
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: Logprobs | None = None

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs needs logprobs: true; give both.")
        if self.tool_choice not in ("none", "auto") and not self.callable_tools:
            raise field_error("tool_choice names no tool of tools; give it there.")
        if len({tool.function.name for tool in self.tools}) < len(self.tools):
            raise field_error("Two of the tools have one name; give each its own.")
        if self.callable_tools and self.grammar is not None and self.grammar[0] != "json":
            raise field_error("tools and an expression or grammar exclude each other; give one.")
        return self

    @property
    def callable_tools(self) -> dict[str, Tool]:
        """The tools that may be called, by name."""
        choice = self.tool_choice
        name = choice.function.name if isinstance(choice, ToolChoice) else None
        tools = {tool.function.name: tool for tool in self.tools if choice != "none"}
        if name is None:
            return tools
        if name in tools:
            return {name: tools[name]}
        return {}


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
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[JsonObject]]


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
    tools = body.callable_tools
    prompt = await encode_messages(context, body.messages, body.tools if tools else ())
    max_new = body.max_completion_tokens or body.max_tokens
    served.check_context(prompt, 1 if max_new is None else max_new, "messages")
    if tools:
        assert served.template is not None
        form = call_format(served.template.source)
        message = (
            f'The chat template of "{served.id}" writes no calls of tools in a format that is read '
            "here (Hermes and Qwen, Llama 3, Mistral); leave out tools."
        )
        refuse(form is None, message, "tools")
        assert form is not None
        schemas = {name: tool.function.parameters for name, tool in tools.items()}
        forced = body.tool_choice != "auto"
        several = body.parallel_tool_calls and not isinstance(body.tool_choice, ToolChoice)
        thoughts = thinking(context, prompt)
        is_object = body.grammar is not None and not form.opening
        message = (
            f'The chat template of "{served.id}" writes a call as a bare JSON object, so tools and a '
            "form of the answer exclude each other; give one."
        )
        refuse(is_object, message, "tools")
        answer_schema = None if body.grammar is None else body.grammar[1]
        source = await context.run(
            context.size,
            grammar,
            form,
            schemas,
            forced,
            several,
            thoughts,
            served.tokenizer,
            answer_schema,
        )
        body = body.model_copy(update={"guided_grammar": source})
    top = (body.top_logprobs or 0) if body.logprobs else None
    request = await engine_request(context, body, prompt, max_new, top)
    return await answer(context, body, ChatChoiceWriter, [request])


def thinking(context: Context, prompt: Sequence[int]) -> str | None:
    """Returns "open" where the prompt begins thoughts, "" where an answer may, else None."""
    template = context.served.template
    if template is None or THOUGHTS[1] not in template.source:
        return None
    ending = context.served.tokenizer.decode(prompt[-16:]).rstrip()
    return "open" if ending.endswith(THOUGHTS[0]) else ""


async def encode_messages(
    context: Context, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> list[int]:
    """Renders messages with the chat template and returns their token ids."""
    served = context.served
    template = served.template
    message = (
        f'"{served.id}" has no chat template; start the server with --chat-template FILE, or '
        "use /v1/completions."
    )
    refuse(template is None, message, "model")
    assert template is not None
    encode = template.tokens

    def render() -> list[int]:
        rendered = [message.to_template() for message in messages]
        offered = [tool.model_dump(exclude_none=True) for tool in tools] or None
        objects = [*rendered, *(offered or ())]
        served.check_lengths([json.dumps(x, ensure_ascii=False) for x in objects], "messages")
        return encode(rendered, True, offered)

    return await context.run(context.size, render)


class ChatChoiceWriter(Choice):
    """Message of one choice, whole or as deltas."""

    id_prefix = "chatcmpl"
    object_type = "chat.completion"
    chunk_type = "chat.completion.chunk"
    is_open = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.top = self.body.top_logprobs or 0
        self.reader: AnswerReader | None = None
        self.deltas = list[JsonObject]()  # that no chunk reports yet
        template = self.context.served.template
        has_tools = bool(self.body.callable_tools)
        thoughts = thinking(self.context, self.handle.request.tokens)
        if has_tools or (thoughts is not None and self.body.grammar is None):
            form = call_format(template.source) if template and has_tools else None
            is_form = self.body.guided_json is not None or self.body.response_format is not None
            self.reader = AnswerReader(form, thoughts is not None, thoughts == "open", is_form)
            self.marks = {mark for marks in self.reader.next.values() for mark in marks}
            self.is_plain = False

    def push(self, event: Event) -> tuple[str, list[ScoredToken], Finish | None]:
        """The new text, with marks that are special tokens, the tokens and the finish reason."""
        text, tokens, finish = super().push(event)
        if self.reader is not None and event.token is not None:
            name = self.tokenizer.token(event.token)
            if self.tokenizer.hides(event.token) and name in self.marks:
                text = name + text
            self.reasoning_tokens += self.reader.field == "reasoning_content"
        if self.reader is not None:
            self.deltas += self.reader.read(text, is_last=finish is not None)
        return text, tokens, finish

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
        message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
        if self.reader is not None:
            message["content"] = ""
            for delta in self.deltas:
                for name, piece in delta.items():
                    if name == "tool_calls" and "id" not in piece[0]:  # more of its arguments
                        function = message[name][-1]["function"]
                        function["arguments"] += piece[0]["function"]["arguments"]
                    else:
                        message[name] = message[name] + piece if name in message else piece
            for call in message.get("tool_calls", ()):
                del call["index"]
            message["content"] = message["content"] or (None if "tool_calls" in message else "")
        return {
            "index": self.number,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": self._finish(finish),
        }

    def _finish(self, finish: Finish | None) -> Finish | None:
        """The finish reason: "tool_calls" where a tool is called."""
        called = self.reader is not None and self.reader.calls and finish == "stop"
        return "tool_calls" if called else finish

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """Deltas: first the role, then texts, thoughts and calls, at last the finish reason."""
        deltas = [] if self.is_open else [self._delta({"role": "assistant", "content": ""})]
        self.is_open = True
        pieces: list[JsonObject] = [{"content": text}] if text else []
        if self.reader is not None:
            pieces, self.deltas = self.deltas, []
        if self.body.logprobs and tokens:
            first, *pieces = pieces or [{"content": ""}]
            deltas.append(self._delta(first, logprobs=self._logprobs(tokens)))
        deltas += map(self._delta, pieces)
        if finish is not None:
            deltas.append(self._delta({}, finish_reason=self._finish(finish)))
        return deltas

    def _delta(self, delta: JsonObject, **fields: Any) -> JsonObject:
        empty = {"index": self.number, "delta": delta, "logprobs": None, "finish_reason": None}
        return empty | fields

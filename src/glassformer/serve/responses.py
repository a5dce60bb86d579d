"""POST /v1/responses: a conversation as items of OpenAI's Responses API, answered by the path of
/v1/chat/completions.

    items -> messages -> chat -> chunks -> ResponseWriter -> events; the last holds the whole response

Nothing is kept between two requests: a client sends the items of a response back in its next ``input``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from copy import deepcopy
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator
from typing_extensions import TypedDict

from ..core.files import JsonObject
from .asgi.body_errors import field_error
from .asgi.event_stream import EventStream, format_event
from .asgi.limits import MOST_MESSAGES
from .chat import ChatRequest, ChosenFunction, Function, PlainName, TextPart, chat
from .schemas import (
    STATELESS,
    Count,
    JsonSchema,
    Logprobs,
    Name,
    RequestBody,
    SamplingRequest,
    example,
)
from .served_models import Context, validated

ITEM_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("content",),
}
COMMON_FIELDS = ("type", "id", "status", "summary")  # which change no answer
ORDER = ("role", "reasoning_content", "content", "tool_calls")  # in an assistant's message
ECHOED = """
instructions max_output_tokens metadata parallel_tool_calls store temperature tool_choice tools top_logprobs top_p
"""
LOGPROBS = "message.output_text.logprobs"  # in ``include``
TEXTS: dict[str, tuple[JsonObject, JsonObject]] = {
    "content": (
        {"type": "message", "role": "assistant"},
        {"type": "output_text", "annotations": [], "logprobs": []},
    ),
    "reasoning_content": ({"type": "reasoning", "summary": []}, {"type": "reasoning_text"}),
}
"""Items and their parts by the field of a chat's delta."""


class ItemPart(TextPart):
    """A text of an item."""

    type: Literal["input_text", "output_text", "reasoning_text"]


ItemText = str | Annotated[list[ItemPart], Field(max_length=MOST_MESSAGES)]


class InputItem(RequestBody):
    """A message, the call of a function, its output, or thoughts: what a user sends, or an item of an
    earlier response."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: ItemText = ""
    call_id: Name | None = None
    name: PlainName | None = None
    arguments: str = "{}"
    output: ItemText = ""
    id: Name | None = None
    status: Name | None = None
    summary: list[JsonValue] = Field([], max_length=0)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name in ITEM_FIELDS[self.type]:
            if name not in self.model_fields_set:
                raise field_error(f"{name} of a {self.type} is missing; give it.")
        for name in sorted(self.model_fields_set.difference(ITEM_FIELDS[self.type], COMMON_FIELDS)):
            raise field_error(f"{name} is no field of a {self.type}; leave it out.")
        return self

    def to_message(self) -> JsonObject:
        """The message of a chat."""
        content = self.output or self.content
        text = content if isinstance(content, str) else "".join(x.text for x in content)
        match self.type:
            case "function_call_output":
                return {"role": "tool", "tool_call_id": self.call_id, "content": text}
            case "function_call":
                function = {"name": self.name, "arguments": self.arguments}
                calls = [{"id": self.call_id, "function": function}]
                return {"role": "assistant", "tool_calls": calls}
            case "reasoning":
                return {"role": "assistant", "reasoning_content": text}
            case _:
                return {"role": self.role, "content": text}


class ResponseTool(Function):
    """A function that the model may call."""

    type: Literal["function"]


class ResponseToolChoice(ChosenFunction):
    """The function that has to be called."""

    type: Literal["function"]


class TextFormat(JsonSchema):
    """Format of the answer: any text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextOptions(RequestBody):
    """Options of the answer's text."""

    format: TextFormat = TextFormat()


class ResponseRequest(SamplingRequest):
    """POST /v1/responses"""

    model_config = example(input="Who are you?", max_output_tokens=8, seed=1)

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextOptions = TextOptions()
    tools: list[ResponseTool] = Field([], max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice = "auto"
    parallel_tool_calls: bool = True
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] = Field(
        []
    )
    top_logprobs: Logprobs | None = None
    metadata: dict[Name, Annotated[str, Field(max_length=512)]] = Field({}, max_length=16)
    reasoning: RequestBody | None = None
    stream_options: RequestBody | None = None
    store: bool = False

    @model_validator(mode="after")
    def _stateless(self) -> Self:
        if self.store:
            raise field_error(f"store: {STATELESS}")
        return self

    def to_chat(self) -> JsonObject:
        """The body of a chat that has the same answer, as a stream."""
        form, choice = self.text.format, self.tool_choice
        return {
            **self.model_dump(include={*SamplingRequest.model_fields}, exclude_unset=True),
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "tools": [{"type": "function", "function": tool} for tool in self.tools],
            "tool_choice": choice
            if isinstance(choice, str)
            else {"type": "function", "function": choice},
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": {"type": form.type, "json_schema": form},
            "logprobs": LOGPROBS in self.include or self.top_logprobs is not None,
            "top_logprobs": self.top_logprobs,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _messages(self) -> list[JsonObject]:
        """The items as messages: thoughts, a text and calls in this order are one message."""
        messages = list[JsonObject]()
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for message in map(InputItem.to_message, self.input):
            before = messages[-1] if messages else message
            is_assistant = before["role"] == message["role"] == "assistant"
            if is_assistant and ORDER.index([*before][-1]) < ORDER.index([*message][-1]):
                before |= message
            elif is_assistant and before is not message and "tool_calls" in message:
                before["tool_calls"] += message["tool_calls"]
            else:
                messages.append(message)
        return messages


class ResponseAnswer(TypedDict):
    """A response: ``output`` holds thoughts, messages and calls in the order in which they were written."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list[JsonObject]
    usage: JsonObject | None


async def respond(context: Context, body: ResponseRequest) -> Any:
    """Answer a conversation, as items or as a stream of events."""
    stream = await chat(context, validated(ChatRequest, body.to_chat()))
    assert isinstance(stream, EventStream)
    writer = ResponseWriter(body, context.served.id)
    events = writer.events(stream)
    if body.stream:
        return EventStream(events, first=await anext(events))

    async def finish() -> None:
        async for _ in events:
            pass

    await context.until_disconnect(finish())
    return writer.response


class ResponseWriter:
    """Events of a response, made from the chunks of a chat."""

    def __init__(self, body: ResponseRequest, model: str) -> None:
        form = body.text.format
        sent_format = form.model_dump(by_alias=True, exclude_unset=True)
        self.response: Any = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": model,
            "output": [],
            "usage": None,
            **dict.fromkeys(("error", "incomplete_details", "previous_response_id")),
            "truncation": "disabled",
            "text": {"format": {"type": form.type, **sent_format}},
            **body.model_dump(include={*ECHOED.split()}, by_alias=True),
        }
        self.output: list[JsonObject] = self.response["output"]
        self.sequence_number = 0
        self.field = ""  # of the deltas that make up the open text
        self.logprobs = list[JsonObject]()  # of tokens whose text no item holds yet

    async def events(self, stream: EventStream) -> AsyncGenerator[bytes]:
        """Yields the events of a chat's stream."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self.response)
        async with aclosing(stream.events) as chunks:
            for event in self._read(stream.first):
                yield event
            async for chunk in chunks:
                for event in self._read(chunk):
                    yield event
        for event in self._close():
            yield event
        yield self._event(self.response["status"], response=self.response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        kind = f"response.{kind}"
        event = {"type": kind, "sequence_number": self.sequence_number, **fields}
        self.sequence_number += 1
        return format_event(event, kind)

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        """An event about the newest item."""
        return self._event(
            kind, item_id=self.output[-1]["id"], output_index=len(self.output) - 1, **fields
        )

    def _read(self, data: bytes) -> Iterator[bytes]:
        """Yields the events of a chat's chunk."""
        chunk = json.loads(data.removeprefix(b"data: "))
        if chat_usage := chunk.get("usage"):
            usage = {
                name.replace("prompt", "input").replace("completion", "output"): count
                for name, count in chat_usage.items()
            }
            usage["input_tokens_details"]["cache_write_tokens"] = 0
            self.response["usage"] = usage
        for choice in chunk["choices"]:
            self.logprobs += (choice["logprobs"] or {}).get("content", ())
            for field, value in choice["delta"].items():
                if field in TEXTS and value:
                    yield from self._write(field, value)
                elif field == "tool_calls":
                    for call in value:
                        yield from self._call(call)
            if choice["finish_reason"] == "length":
                self.response["status"] = "incomplete"
                self.response["incomplete_details"] = {"reason": "max_output_tokens"}
            elif choice["finish_reason"] is not None:
                self.response["status"] = "completed"

    def _write(self, field: str, text: str) -> Iterator[bytes]:
        """Yields the delta of a text, behind the events that open its item."""
        item, part = TEXTS[field]
        if field != self.field:
            part = deepcopy(part) | {"text": ""}
            yield from self._open({**item, "content": []})
            self.field = field
            self.output[-1]["content"].append(part)
            yield self._item_event("content_part.added", content_index=0, part=part)
        output = self.output[-1]["content"][0]
        output["text"] += text
        logprobs = self._take_logprobs(text, "logprobs" in part)
        if logprobs:
            output["logprobs"] += logprobs
        kind = f"{part['type']}.delta"
        yield self._item_event(kind, content_index=0, delta=text, logprobs=logprobs)

    def _take_logprobs(self, text: str, has_logprobs: bool) -> list[JsonObject]:
        """The log-probabilities of the tokens that wrote a text. Those before them wrote marks, which
        no item holds, and thoughts have none."""
        tokens = list[JsonObject]()
        missing = len(text.encode()) * has_logprobs
        while self.logprobs and missing > 0:
            tokens.insert(0, self.logprobs.pop())
            missing -= len(tokens[0]["bytes"])
        self.logprobs = []
        return tokens

    def _close(self) -> Iterator[bytes]:
        """Yields the events that end the open text or call, if any."""
        item = self.output[-1] if self.output else {}
        field = self.field
        self.field = ""
        if field == "tool_calls":
            function = {name: item[name] for name in ("name", "arguments")}
            yield self._item_event("function_call_arguments.done", **function)
            yield self._end_item()
        elif field:
            (part,) = item["content"]
            kind = f"{part['type']}.done"
            logprobs = part.get("logprobs", [])
            yield self._item_event(kind, content_index=0, text=part["text"], logprobs=logprobs)
            yield self._item_event("content_part.done", content_index=0, part=part)
            yield self._end_item()

    def _call(self, call: JsonObject) -> Iterator[bytes]:
        """Yields the delta of a call's arguments, behind the events that open its item."""
        function = call["function"]
        if "id" in call:
            named = {"type": "function_call", "call_id": call["id"], "name": function["name"]}
            yield from self._open({**named, "arguments": ""})
            self.field = "tool_calls"
        if piece := function["arguments"]:
            self.output[-1]["arguments"] += piece
            yield self._item_event("function_call_arguments.delta", delta=piece)

    def _open(self, item: JsonObject) -> Iterator[bytes]:
        """Yields the events that end the open text or call, if any, and begin another item."""
        yield from self._close()
        id = f"{item['type']}_{uuid.uuid4().hex}"
        self.output.append({"id": id, "status": "in_progress", **item})
        yield self._item_event("output_item.added", item=self.output[-1])

    def _end_item(self) -> bytes:
        is_cut = self.response["status"] == "incomplete"
        item = self.output[-1]
        item["status"] = "incomplete" if is_cut else "completed"
        return self._item_event("output_item.done", item=item)

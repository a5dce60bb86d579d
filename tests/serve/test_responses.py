"""The Responses API by OpenAI's client: the tokens of a chat of the same conversation, events of the types
that the client declares, items that come back, and sentences for what needs a store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from glassformer.serve.asgi.event_stream import EventStream, format_event
from glassformer.serve.responses import ResponseRequest, ResponseWriter

from .test_tools import CHAT, OFFERED, live  # noqa: F401

openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
RESPONSES = "/v1/responses"
TOOLS = [{"type": "function", **tool["function"]} for tool in OFFERED]
CALL = {"name": "clock", "arguments": '{"zone": "UTC"}'}
ITEMS: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "What "}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
        {"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
        {"type": "output_text", "text": "Well.", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "abc", "status": "completed", **CALL},
    {"type": "function_call", "call_id": "abd", **CALL},
    {"type": "function_call_output", "call_id": "abc", "output": "12:00"},
    {"type": "function_call_output", "call_id": "abd", "output": [
        {"type": "input_text", "text": "13:"}, {"type": "input_text", "text": "00"}]},
    {"role": "developer", "content": "Go on."},
]  # fmt: skip
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What "},
    {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "Well.",
        "tool_calls": [{"id": id, "function": CALL} for id in ("abc", "abd")],
    },
    {"role": "tool", "tool_call_id": "abc", "content": "12:00"},
    {"role": "tool", "tool_call_id": "abd", "content": "13:00"},
    {"role": "developer", "content": "Go on."},
]
SAMPLED: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "model": "hermes"}


@pytest.fixture
def client(live):  # noqa: F811
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def plain(response):
    """The output without its ids, which are drawn."""
    items = json.loads(response.model_dump_json(exclude_unset=True))["output"]
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def sent_events(server, body):
    """The events of a stream, each of a type that OpenAI's client declares."""
    declared = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    text = httpx.post(f"{server.url}{RESPONSES}", json={**body, "stream": True}, timeout=60).text
    events = []
    for piece in text.split("\n\n")[:-1]:
        name, data = piece.split("\n", 1)
        declared.validate_json(data.removeprefix("data: "))
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    return events


def test_items_become_the_messages_of_a_chat():
    body = ResponseRequest(input=ITEMS, instructions="Be short.", max_output_tokens=3)
    assert body.to_chat()["messages"] == MESSAGES
    text = ResponseRequest(input="hi").to_chat()
    assert text["messages"] == [{"role": "user", "content": "hi"}] and "temperature" not in text
    apart = ResponseRequest(input=[{"role": "assistant", "content": "a"}] * 2).to_chat()
    assert len(apart["messages"]) == 2


def test_a_text_has_the_tokens_of_a_chat(client, live):  # noqa: F811
    chat = client.chat.completions.create(messages=MESSAGES, max_tokens=30, seed=4, **SAMPLED)
    request = {
        **SAMPLED,
        "input": ITEMS,
        "instructions": "Be short.",
        "max_output_tokens": 30,
    }
    response = client.responses.create(**request, extra_body={"seed": 4})
    openai.types.responses.Response.model_validate_json(response.model_dump_json())
    choice = chat.choices[0]
    assert response.output_text == choice.message.content != ""
    assert response.status == "incomplete" and choice.finish_reason == "length"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.text.model_dump(exclude_unset=True) == {"format": {"type": "text"}}
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (
        chat.usage.prompt_tokens,
        30,
        chat.usage.total_tokens,
    )
    events = sent_events(live, {**request, "seed": 4})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == response.output_text
    last = openai.types.responses.Response.model_validate(events[-1]["response"])
    assert events[-1]["type"] == "response.incomplete" and plain(last) == plain(response)


@pytest.mark.parametrize("model", ["hermes", "mistral", "llama"])
def test_calls_are_those_of_a_chat_and_their_outputs_go_back(model, client, live):  # noqa: F811
    chat = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "hi"}],
        tools=OFFERED,
        tool_choice={"type": "function", "function": {"name": "clock"}},
        seed=4,
    )
    request = {
        "model": model,
        "input": "hi",
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "clock"},
    }
    response = client.responses.create(**request, extra_body={"seed": 4})
    (called,) = chat.choices[0].message.tool_calls
    (item,) = response.output
    assert (item.type, item.name) == ("function_call", "clock")
    assert json.loads(item.arguments) == {"zone": "UTC"}
    assert called.function.arguments == item.arguments and response.status == "completed"
    assert response.usage.output_tokens == chat.usage.completion_tokens
    kinds = [event["type"].removeprefix("response.") for event in sent_events(live, request)]
    assert kinds.count("function_call_arguments.delta") > 1
    assert [*dict.fromkeys(kinds)] == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    with client.responses.stream(**request, extra_body={"seed": 4}) as stream:
        (streamed,) = stream.get_final_response().output
    assert (streamed.name, streamed.arguments) == (item.name, item.arguments)
    # ids are drawn, and a template may write them: with one that is fixed the answer is, too
    call = item.model_copy(update={"call_id": "call_clock"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}
    again = [{"role": "user", "content": "hi"}, call, output]
    after = client.responses.create(
        **{**request, "input": again, "tool_choice": "none"},
        extra_body={"seed": 4},
        max_output_tokens=9,
    )
    back = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": call.call_id, "type": "function", "function": CALL}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "12:00"},
    ]
    expected = client.chat.completions.create(model=model, messages=back, max_tokens=9, seed=4)
    assert after.output_text == expected.choices[0].message.content != ""
    assert after.usage.input_tokens == expected.usage.prompt_tokens


def test_log_probabilities_are_those_of_a_chat(client, live):  # noqa: F811
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=20,
        seed=4,
        logprobs=True,
        top_logprobs=2,
        **SAMPLED,
    )
    request = {**SAMPLED, "input": "hi", "max_output_tokens": 20, "top_logprobs": 2}
    response = client.responses.create(
        **request, include=["message.output_text.logprobs"], extra_body={"seed": 4}
    )
    expected = [entry.model_dump() for entry in chat.choices[0].logprobs.content]
    content = response.output[0].content[0].model_dump()
    assert content["logprobs"] == expected and len(expected) == 20
    assert len(expected[0]["top_logprobs"]) == response.top_logprobs == 2
    sent = sent_events(live, {**request, "seed": 4})
    deltas = [event["logprobs"] for event in sent if event["type"].endswith("text.delta")]
    assert [entry for delta in deltas for entry in delta] == expected
    (done,) = (event for event in sent if event["type"].endswith("text.done"))
    assert done["logprobs"] == expected


def test_thoughts_and_their_marks_have_no_log_probabilities():
    tokens = {"So": "reasoning_content", "</th": "", "ink>": "", "Ye": "content", "s": "content"}
    entries = [{"token": text, "bytes": [*text.encode()]} for text in tokens]
    writer = ResponseWriter(ResponseRequest(input="hi"), "tiny")
    events = list[bytes]()
    for (text, field), entry in zip(tokens.items(), entries, strict=True):
        delta = {field: text} if field else {"content": ""}
        choice = {"delta": delta, "logprobs": {"content": [entry]}, "finish_reason": None}
        events += writer._read(format_event({"choices": [choice]}))
    thoughts, message = writer.output
    assert "logprobs" not in thoughts["content"][0]
    assert message["content"][0]["logprobs"] == entries[3:]
    deltas = [json.loads(event.split(b"data: ")[1]) for event in events if b"delta" in event]
    assert [delta["logprobs"] for delta in deltas] == [[], entries[3:4], entries[4:]]


def test_a_form_is_kept(client):
    class City(BaseModel):
        name: str

    response = client.responses.parse(
        model="plain", input="hi", text_format=City, temperature=0.4, extra_body={"seed": 1}
    )
    assert isinstance(response.output_parsed, City) and response.text.format.name == "City"
    any_object = client.responses.create(
        model="plain", input="hi", text={"format": {"type": "json_object"}}, max_output_tokens=3
    )
    assert any_object.output_text.startswith("{")


def test_thoughts_are_items_and_are_counted(client, live):  # noqa: F811
    request = {"model": "thinker", "input": "hi", "max_output_tokens": 12}
    response = client.responses.create(**request, extra_body={"seed": 1})
    chat = live.json(
        CHAT, model="thinker", messages=[{"role": "user", "content": "hi"}], max_tokens=12, seed=1
    )
    (item,) = response.output
    message = chat["choices"][0]["message"]
    assert item.type == "reasoning" and item.content[0].text == message["reasoning_content"]
    assert response.usage.output_tokens_details.reasoning_tokens == 12
    assert chat["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}
    kinds = [event["type"] for event in sent_events(live, {**request, "seed": 1})]
    assert kinds[3] == "response.content_part.added" and kinds[4] == "response.reasoning_text.delta"


def test_thoughts_text_and_calls_are_events_in_order():
    call = {"id": "abc", "type": "function", "index": 0, "function": CALL}
    deltas: list[Any] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "So"},
        {"reasoning_content": "."},
        {"content": "Yes"},
        {"tool_calls": [call]},
        {"content": "!"},
        {},
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    details = {
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }

    async def chunks():
        for delta in deltas[1:]:
            choice = {"delta": delta, "logprobs": None, "finish_reason": None if delta else "stop"}
            yield format_event({"choices": [choice], "usage": None})
        yield format_event({"choices": [], "usage": usage | details})

    first = {"delta": deltas[0], "logprobs": None, "finish_reason": None}
    head = format_event({"choices": [first]})
    writer = ResponseWriter(ResponseRequest(input="hi"), "tiny")

    async def collect():
        return [event async for event in writer.events(EventStream(chunks(), first=head))]

    events = [json.loads(event.split(b"data: ")[1]) for event in asyncio.run(collect())]
    text = [
        "output_item.added",
        "content_part.added",
        "{}.delta",
        "{}.done",
        "content_part.done",
        "output_item.done",
    ]
    thoughts = [name.format("reasoning_text") for name in [*text[:3], *text[2:]]]
    words = [name.format("output_text") for name in text]
    calls = [name.format("function_call_arguments") for name in [text[0], *text[2:4], text[5]]]
    middle = [*thoughts, *words, *calls, *words]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *middle,
        "completed",
    ]
    places = [event["output_index"] for event in events[2:-1]]
    assert places == [0] * 7 + [1] * 6 + [2] * 4 + [3] * 6
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "message"]
    assert output[0]["content"][0]["text"] == "So." and output[2]["arguments"] == CALL["arguments"]
    assert {item["status"] for item in output} == {"completed"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"previous_response_id": "resp_1"}, "no response is kept"),
        ({"conversation": "conv_1"}, "no response is kept"),
        ({"store": True}, "no response is kept"),
        ({"background": True}, "while its client waits"),
        ({"prompt": {"id": "p"}}, "prompt is no field"),
        ({"tools": [{"type": "web_search", "search_context_size": "low"}]}, '"web_search" is not served'),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "names no tool"),
        ({"truncation": "auto"}, "truncation is no field"),
        ({"reasoning": {"effort": "low"}}, "effort is no field"),
        ({"max_tool_calls": 3}, "max_tool_calls is no field"),
        ({"n": 2}, "n is no field"),
        ({"top_logprobs": 21}, "top_logprobs is 21"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "JSON schema cannot"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, '"item_reference" is not served'),
        ({"input": [{"role": "user"}]}, "content of a message is missing"),
        ({"input": [{"role": "user", "content": "a", "output": "b"}]}, "output is no field of a message"),
        ({"input": [{"type": "function_call", "call_id": "a", **CALL, "content": "b"}]},
            "content is no field of a function_call"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "Two of the tools have one name"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "a"}]}]},
                '"input_image" is not served',
        ),
        ({"input": [{"type": "input_image"}]}, '"input_image" is not served'),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "["}]}, "JSON"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "encrypted_content"),
    ],
)  # fmt: skip
def test_what_is_refused_says_so(fields, sentence, live):  # noqa: F811
    answer = live.post(RESPONSES, {"input": "hi", "model": "hermes", **fields})
    assert answer.status_code == 400 and sentence in answer.json()["error"]["message"]


def test_half_a_surrogate_pair_in_what_is_sent_back_is_refused(live):  # noqa: F811
    body = json.dumps({"input": "hi", "model": "hermes", "metadata": {"a": "\ud800"}})
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{live.url}{RESPONSES}", content=body, headers=headers, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "metadata.a"


def test_fields_that_change_no_response(client, live):  # noqa: F811
    request = {"model": "plain", "input": "hi", "max_output_tokens": 5}
    first = client.responses.create(**request, extra_body={"seed": 2})
    harmless = {
        "store": False,
        "background": False,
        "truncation": "disabled",
        "user": "me",
        "metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
        "stream_options": {"include_obfuscation": False},
        "previous_response_id": None,
    }
    more = client.responses.create(**request, **harmless, extra_body={"seed": 2})
    assert more.output_text == first.output_text and more.metadata == {"a": "b"}
    assert live.get(f"{RESPONSES}/{first.id}").status_code == 404

"""Calls of tools: every format is held to its schemas and read back, piece by piece as at once; and by
OpenAI's client over a live server."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import chain

import pytest

import tiny
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.serve import grammars, tools

from .conftest import events, started

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", "Rome"]}},
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}
FORMATS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": '"parameters":'}


@pytest.fixture(scope="module", params=[True, False], ids=["special", "text"])
def tokenizer(request):
    marks = ("[TOOL_CALLS]", "<tool_call>") if request.param else ()
    texts = ['{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n'] * 4
    return train_tokenizer("bpe", texts, 340, ("<|endoftext|>", *marks))


def written(tokenizer, source, seed, prefix=""):
    """What a model of chance writes under a grammar, special tokens by their names."""
    guide = grammars.guide_factory(tokenizer, tokenizer.size, "lark", source)()
    ids = tokenizer.encode(prefix) if prefix else []
    for at, token in enumerate(ids):
        assert guide(ids[:at])[token]
    luck = random.Random(seed)
    while not ids or ids[-1] != tokenizer.eos:
        allowed = guide(ids).nonzero().flatten().tolist()
        assert allowed and len(ids) < 400
        ids.append(tokenizer.eos if tokenizer.eos in allowed else luck.choice(allowed))
    names = {id: name for name, id in tokenizer.specials.items()}
    pieces = [names.get(id, "").encode() or tokenizer.bytes_of(id) for id in ids[:-1]]
    return b"".join(pieces).decode("utf-8", "replace")


def merged(form, text, sizes, thinks=False, is_open=False, is_form=False):
    """The deltas of a text that comes in pieces, as one message."""
    reader, message, at = tools.AnswerReader(form, thinks, is_open, is_form), {}, 0
    while at < len(text) or not at:
        size = next(sizes)
        for delta in reader.read(text[at : at + size], at + size >= len(text)):
            for name, piece in delta.items():
                if name == "tool_calls" and "id" not in piece[0]:
                    assert piece[0].keys() == {"index", "function"}
                    assert piece[0]["index"] == message[name][-1]["index"]
                    function = message[name][-1]["function"]
                    function["arguments"] += piece[0]["function"]["arguments"]
                else:
                    message[name] = message[name] + piece if name in message else piece
        at += size
    for call in message.get("tool_calls", ()):
        call["id"] = len(call["id"])
    return message


def code_points(text):
    return iter([len(text) + 1])


def by_chance(seed):
    luck = random.Random(seed)
    while True:
        yield luck.randint(1, 7)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("several", [True, False])
def test_a_forced_call_keeps_its_schema(name, several, tokenizer):
    """Reference: another library's validator."""
    schemas = pytest.importorskip("jsonschema_rs")
    form = tools.call_format(f"{{# {FORMATS[name]} #}}")
    source = tools.grammar(form, SCHEMAS, True, several, None, tokenizer)
    for seed in range(3):
        text = written(tokenizer, source, seed)
        message = merged(form, text, code_points(text))
        assert message == merged(form, text, by_chance(seed)) and set(message) == {"tool_calls"}
        assert several or len(message["tool_calls"]) == 1
        for number, call in enumerate(message["tool_calls"]):
            assert (call["index"], call["id"]) == (number, 9)
            function = call["function"]
            schemas.validate(SCHEMAS[function["name"]], json.loads(function["arguments"]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_behind_a_text_keeps_its_schema_too(name, tokenizer):
    form = tools.call_format(FORMATS[name])
    source = tools.grammar(form, SCHEMAS, False, True, None, tokenizer)
    for prefix in ("", "Well, "):
        written(tokenizer, source, 1, prefix)
    if tokenizer.specials.keys() >= {"<tool_call>"}:
        return
    opening = {"hermes": "Hm. <tool_call>\n", "mistral": "Hm. [TOOL_CALLS][", "llama": ""}[name]
    text = written(tokenizer, source, 1, opening + '{"name": "cl')
    message = merged(form, text, by_chance(2))
    function = message["tool_calls"][0]["function"]
    assert function["name"] == "clock" and json.loads(function["arguments"]) == {"zone": "UTC"}
    assert message.get("content", "Hm. ") == "Hm. "


@pytest.mark.parametrize(("thoughts", "prefix"), [("open", "so"), ("", "<think>so")])
def test_thoughts_come_first(thoughts, prefix, tokenizer):
    form = tools.FORMATS["<tool_call>"]
    source = tools.grammar(form, SCHEMAS, True, False, thoughts, tokenizer)
    space = "" if "<tool_call>" in tokenizer.specials else "\n\n"
    text = written(tokenizer, source, 3, f"{prefix}\n</think>{space}")
    message = merged(form, text, by_chance(1), True, thoughts == "open")
    assert message["reasoning_content"] == "so\n" and len(message["tool_calls"]) == 1
    assert "content" not in message
    plain = merged(None, "<think>\nA < b.</think>\n\nYes <thin.", by_chance(4), True)
    assert plain == {"reasoning_content": "A < b.", "content": "Yes <thin."}


@pytest.mark.parametrize("name", ["hermes", "mistral"])
@pytest.mark.parametrize("answer_schema", [CLOCK, True])
def test_a_call_or_a_text_of_a_form(name, answer_schema, tokenizer):
    """Reference: another library's validator."""
    schemas = pytest.importorskip("jsonschema_rs")
    form = tools.call_format(FORMATS[name])
    source = tools.grammar(form, SCHEMAS, False, True, None, tokenizer, answer_schema)
    plain = written(tokenizer, source, 1, "{" if answer_schema is CLOCK else "[")
    message = merged(form, plain, by_chance(2), is_form=True)
    assert set(message) == {"content"}
    schemas.validate(answer_schema, json.loads(message["content"]))
    if form.opening not in tokenizer.specials:
        called = written(tokenizer, source, 1, form.opening)
        message = merged(form, called, by_chance(3), is_form=True)
        assert set(message) == {"tool_calls"} and message == merged(
            form, called, code_points(called)
        )
        for call in message["tool_calls"]:
            function = call["function"]
            schemas.validate(SCHEMAS[function["name"]], json.loads(function["arguments"]))
    quoted = json.dumps({"a": f"{form.opening}[3]{form.closing} <think>"})
    for sizes in (code_points(quoted), by_chance(4)):
        assert merged(form, quoted, sizes, True, is_form=True) == {"content": quoted}


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_are_the_text_that_was_written(name):
    """Marks, quotes and braces in a text end no call, and no number becomes Infinity."""
    form = tools.FORMATS[FORMATS[name]]
    nested = {"a": f'{form.closing}}}]{{"name": "\\"', "b": [[{}], {"c": "]"}]}
    written = [f'{{"x": 1e999, "y": {json.dumps(nested)}}}', "{ }"]
    calls = [f'{{"name": "f", "{form.arguments}": {text}}}' for text in written]
    answer = "".join(f"{form.opening}\n{call}\n{form.closing}\n" for call in calls)
    if not form.opening:
        answer = calls[0]
    elif form.is_list:
        answer = f"{form.opening}[{', '.join(calls)}]"
    for sizes in (code_points(answer), by_chance(1), iter([1] * len(answer))):
        message = merged(
            form, answer + (" So." if form.opening else ""), chain(sizes, by_chance(3))
        )
        functions = [call["function"] for call in message["tool_calls"]]
        assert [call["index"] for call in message["tool_calls"]] == [*range(len(functions))]
        expected = written if form.opening else written[:1]
        assert functions == [{"name": "f", "arguments": text} for text in expected]
        assert message.get("content", "So.") == "So."


def test_a_call_that_is_cut_off_has_the_arguments_until_there():
    form = tools.FORMATS["<tool_call>"]
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "b'
    (call,) = merged(form, text, by_chance(2))["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": "b'}


PETS = {
    "cat": {"properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}}},
    "dog": {"properties": {"kind": {"const": "dog"}, "good": {"type": "boolean"}}},
}
for pet in PETS.values():
    pet |= {"type": "object", "required": [*pet["properties"]], "additionalProperties": False}
UNION = {
    "oneOf": [{"$ref": f"#/$defs/{name}"} for name in PETS],
    "discriminator": {"propertyName": "kind", "mapping": {n: f"#/$defs/{n}" for n in PETS}},
    "$defs": PETS,
}


def test_a_union_with_a_discriminator_is_enforced(tokenizer):
    """The schema that pydantic writes for one. Reference: another library's validator."""
    schemas = pytest.importorskip("jsonschema_rs")
    form = tools.FORMATS["<tool_call>"]
    source = tools.grammar(form, {"pet": UNION}, True, False, None, tokenizer)
    kinds = set()
    for seed in range(8):
        text = written(tokenizer, source, seed)
        (call,) = merged(form, text, code_points(text))["tool_calls"]
        pet = json.loads(call["function"]["arguments"])
        schemas.validate(UNION, pet)
        kinds.add(pet["kind"])
    assert kinds == {"cat", "dog"}


def test_what_is_no_call_stays_text():
    form = tools.FORMATS["<tool_call>"]
    for text in ('<tool_call>\n{"name": "cl', "a <tool_call>3</tool_call>", "<tool_cal", ""):
        message = merged(form, text, by_chance(1))
        assert message.get("content", "") == text.removesuffix("</tool_call>")
    assert tools.call_format("<function=") is None is tools.call_format("plain")
    assert tools.call_format("<tool_call><arg_key>") is None


# ------------------------------------------------------------------------------------- live

SHOWN = (
    "{% for t in tools or [] %}T{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.items() | list | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = "/v1/chat/completions"
OFFERED = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "temperature": 0.5}
TOLD: dict = {**ASKED, "tools": OFFERED, "seed": 4}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    home = tmp_path_factory.mktemp("tools")
    templates = {name: f"{{# {sign} #}}{SHOWN}" for name, sign in FORMATS.items()}
    templates["plain"] = SHOWN
    templates["thinker"] = f"{{# </think> #}}{SHOWN}<think>"
    letters = train_tokenizer("bpe", [json.dumps([SCHEMAS] * 4)], 340, ("<|endoftext|>",))
    embed = dataclasses.replace(tiny.DECODERS["llama"].embed, vocab=letters.size)
    cfg = dataclasses.replace(tiny.DECODERS["llama"], embed=embed, context=4096)
    model = build_model(cfg, seed=2)
    for name, template in templates.items():
        letters.chat_template = template
        store.save(model, home / name, letters)
    words = " ".join(str(home / name) for name in templates)
    with started(home, f"{words} --dtype float32") as server:
        yield server


@pytest.mark.parametrize("name", FORMATS)
def test_openai_reads_calls(name, live):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    create = client.chat.completions.create
    named = {"type": "function", "function": {"name": "clock"}}
    response = create(model=name, **TOLD, tool_choice=named)
    (call,) = response.choices[0].message.tool_calls
    assert call.function.name == "clock" and json.loads(call.function.arguments) == {"zone": "UTC"}
    assert response.choices[0].finish_reason == "tool_calls"
    assert response.choices[0].message.content is None
    with client.chat.completions.stream(model=name, **TOLD, tool_choice="required") as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    forced = create(model=name, **TOLD, tool_choice="required").choices[0].message.tool_calls
    plain = [call.function.model_dump(include={"name", "arguments"}) for call in forced]
    assert plain == [c.function.model_dump(include={"name", "arguments"}) for c in streamed]
    reply = [{"role": "tool", "tool_call_id": call.id, "content": "12:00"}]
    again = [*ASKED["messages"], response.choices[0].message, *reply]
    after = create(**{**TOLD, "messages": again}, model=name, tool_choice="none")
    assert after.choices[0].message.content and not after.choices[0].message.tool_calls
    text = live.json(
        "/tokenize",
        model=name,
        messages=[m if isinstance(m, dict) else m.model_dump() for m in again],
    )
    text = live.json("/detokenize", model=name, tokens=text["tokens"])["prompt"]
    assert f'assistant: [["zone", "UTC"]]\ntool: 12:00{call.id}\n' in text


def test_an_answer_in_text_is_free(live):
    body = {**TOLD, "max_tokens": 20, "model": "hermes"}
    (choice,) = live.json(CHAT, body)["choices"]
    assert choice["message"]["content"] and "tool_calls" not in choice["message"]
    chunks = events(live.post(CHAT, {**body, "stream": True}))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(d.get("content", "") for d in deltas) == choice["message"]["content"]


def test_tools_beside_a_form(live):
    """An answer is a call of a tool, or a text of the form."""
    form = {"type": "json_schema", "json_schema": {"name": "clock", "schema": CLOCK}}
    for model in ("hermes", "mistral"):
        for seed in range(3):
            body = {**TOLD, "model": model, "seed": seed, "response_format": form}
            (choice,) = live.json(CHAT, body)["choices"]
            message = choice["message"]
            if message["content"] is not None:
                assert json.loads(message["content"]) == {"zone": "UTC"}
            assert (choice["finish_reason"] == "tool_calls") == (message["content"] is None)
            streamed = events(live.post(CHAT, {**body, "stream": True}))
            deltas = [c["choices"][0]["delta"] for c in streamed]
            assert "".join(d.get("content", "") for d in deltas) == (message["content"] or "")
            calls = [call for d in deltas for call in d.get("tool_calls", ())]
            for number, call in enumerate(message.get("tool_calls", ())):
                functions = [c["function"] for c in calls if c["index"] == number]
                assert [f["name"] for f in functions if "name" in f] == [call["function"]["name"]]
                pieces = "".join(f["arguments"] for f in functions)
                assert pieces == call["function"]["arguments"]


def test_thoughts_are_answered_apart(live):
    body = {**ASKED, "model": "thinker", "seed": 1, "max_tokens": 12}
    (choice,) = live.json(CHAT, body)["choices"]
    assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"]
    chunks = events(live.post(CHAT, {**body, "stream": True}))
    pieces = [c["delta"].get("reasoning_content", "") for e in chunks for c in e["choices"]]
    assert "".join(pieces) == choice["message"]["reasoning_content"]


@pytest.mark.parametrize(
    ("model", "more", "sentence"),
    [
        ("plain", {}, "Hermes and Qwen, Llama 3, Mistral"),
        ("hermes", {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "no tool"),
        ("hermes", {"tools": [], "tool_choice": "required"}, "no tool"),
        ("hermes", {"guided_regex": "a"}, "exclude each other"),
        ("llama", {"response_format": {"type": "json_object"}}, "a bare JSON object"),
        (
            "hermes",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]},
            "not enforced",
        ),
        (
            "hermes",
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}],
                    }
                ]
            },
            "JSON object",
        ),
        (
            "hermes",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "a",
                        "tool_calls": [{"id": "1", "function": {"name": "f"}}],
                    }
                ]
            },
            "assistant",
        ),
    ],
)
def test_what_is_refused_says_so(live, model, more, sentence):
    answer = live.post(CHAT, {**TOLD, "model": model, **more})
    assert answer.status_code == 400 and sentence in answer.json()["error"]["message"]

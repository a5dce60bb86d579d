"""What clients send that is wrong, line by line of the checklist: 4xx in OpenAI's form and at once,
never 500.

Of schemas, limits, body_errors, requests and errors.
"""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from glassformer.serve.asgi import limits

from .conftest import started

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": "O Romeo", "max_tokens": 2}
TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def refused(answer: httpx.Response, status: int = 400, param: str | None = None) -> str:
    """The sentence of an error; its form is held to OpenAI's."""
    from glassformer.serve.app import ERRORS

    assert answer.status_code == status, (answer.status_code, answer.text[:300])
    assert status in ERRORS, "openapi.json describes every error"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"][-1] in ".?", (
        error
    )
    assert "x-request-id" in answer.headers and "Traceback" not in answer.text
    assert param is None or error["param"] == param, error
    return str(error["message"])


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b"3",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"{}",
    ],
)
def test_c1_a_body_that_is_no_object(server, path, body):
    refused(server.send(path, body))


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_c1_another_content_type(server, kind):
    refused(
        server.send(TEXT, json.dumps(PROMPT), kind),
        415,
    )


def test_c1_text_that_is_no_text(server):
    for body in (
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
    ):
        refused(server.send(TEXT, body))
    response = server.post(TEXT, PROMPT, prompt="a\x00b\x1b[31m\r\n")
    assert response.status_code == 200


def test_c2_a_body_too_large_is_refused_before_it_is_read(server):
    with server.connect() as item:
        item.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"application/json\r\n"
        )
        item.sendall(f"Content-Length: {limits.MOST_BODY + 1}\r\n\r\n{{".encode())
        assert b" 413 " in item.recv(4096).split(b"\r\n")[0]

    def pieces():
        for _ in range(limits.MOST_BODY // 65536 + 20):
            yield b" " * 65536

    with server.client() as client:
        try:
            answer = client.post(
                TEXT, content=pieces(), headers={"content-type": "application/json"}
            )
            refused(answer, 413)
        except httpx.TransportError:  # it closed while we were writing
            pass
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    "header", [b"X-A: " + b"a" * 200_000, b"\r\n".join(b"X-%d: a" % n for n in range(20_000))]
)
def test_c3_headers_too_large(server, header):
    with server.connect() as item:
        try:
            item.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
            output = item.recv(4096)
            assert output == b"" or output.split()[1] in (b"400", b"431"), output[:100]
        except OSError:
            pass  # closed while we wrote
    assert server.get("/health").status_code == 200


def test_c3_headers_are_bounded_as_a_whole(server):
    """However few bytes of them wait at once, and however short each is."""
    many = {f"x-{number}": "a" for number in range(limits.MOST_HEADER_LINES)}
    for headers in (
        {"x-a": "a" * limits.MOST_HEADERS},
        {"x-a": "a" * 20_000, "x-b": "a" * 20_000},
        many,
    ):
        refused(server.get("/health", headers=headers), 431)
        refused(server.post(TEXT, PROMPT, headers=headers), 431)
    with server.client() as client:  # nothing is left of them on the connection
        assert client.get("/health", headers={"x-a": "a" * 10_000}).status_code == 200
    lines = b"".join(b"X-%d: a\r\n" % number for number in range(5000))
    with server.connect() as item:
        item.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
        assert item.recv(4096).split()[1] in (b"400", b"431")


def test_health_has_a_head(server):
    answer = server.client().head("/health")
    assert answer.status_code == 200 and answer.content == b""


def test_no_path_of_the_machine_is_shown(server, chat_model):
    with server.client() as client:
        for path in (
            "/v1/models",
            "/v1/models/tiny",
            "/tokenizer_info",
            "/metrics",
            "/health",
            "/openapi.json",
        ):
            text = client.get(path).text
            assert str(chat_model.parent) not in text and "/tmp" not in text, path
        assert {item["root"] for item in client.get("/v1/models").json()["data"]} >= {
            "tiny",
            "vectors",
        }


@pytest.mark.parametrize(
    "prompt",
    [
        "", [], [[]], ["", "a"], [-1], [[1], [-1]], [1024], [10**30], [1.5], [True], [None], [["a"]], [[[1]]], {}, 3,
        None, ["a", 1], [1, "a"], [{}], ["a"] * 2000, False,
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_c5_prompts(server, prompt, stream):
    refused(server.post(TEXT, PROMPT, prompt=prompt, stream=stream))


def test_c6_more_than_the_context(server):
    assert "256" in refused(server.post(TEXT, PROMPT, max_tokens=256), param="max_tokens")
    refused(server.post(TEXT, PROMPT, prompt=[5] * 257))
    assert server.post(TEXT, prompt=[5] * 256, max_tokens=1).status_code == 200
    start = time.monotonic()
    refused(server.post(TEXT, PROMPT, prompt="word " * 200_000), param="prompt")
    refused(server.post(CHAT, TALK, messages=[{"role": "user", "content": "a" * 1_000_000}]))
    assert time.monotonic() - start < 10, "it is not tokenised first"
    refused(server.post(CHAT, TALK, max_tokens=300))
    refused(server.post(TEXT, PROMPT, prompt=["a" * 10_000] * 200))


NUMBERS: dict[str, list[Any]] = {
    "n": [0, -1, 65, 10**9, 1.5, "2", True, []],
    "best_of": [2, 0, 10**9, "1"],
    "logprobs": [-1, 21, 10**9, "3", 1.5],
    "stop": ["", [""], ["a"] * 17, "a" * 300, 3, [3], {}],
    "logit_bias": [
        {"a": 1},
        {"5": 101},
        {"5": "x"},
        {"-1": 1},
        {"99999": 1},
        [1],
        5,
        {str(n): 1 for n in range(1025)},
    ],
    "temperature": [-0.1, 101, "hot", True, [], 1e999],
    "top_p": [0, -1, 1.01, "x", True],
    "top_k": [-2, 1.5, "x", 10**12],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, 2.1, "x"],
    "frequency_penalty": [-3, 3],
    "repetition_penalty": [0, -1, 101],
    "max_tokens": [0, -1, 10**12, "5", 1.5, True],
    "seed": [2**63, -(2**64), 1.5, "x", True],
    "stream": ["yes", 1],
    "echo": [3],
    "suffix": ["end"],
    "stop_token_ids": [[-1], [1024], ["a"], 3, [1] * 65],
    "use_beam_search": [True],
    "prompt_logprobs": [1],
    "model": [3, [], "a" * 300],
    "stream_options": [{"include_usage": True}, 3],
}


@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name, number in NUMBERS.items() for value in number]
)
def test_c7_c8_fields_out_of_range(server, field, value):
    body = json.dumps({**PROMPT, field: value})
    answer = server.send(TEXT, body)
    assert field in refused(answer)


def test_c8_what_is_defined(server):
    for more in (
        {"seed": -5},
        {"temperature": 0},
        {"top_p": 1},
        {"max_tokens": 2.0},
        {"top_k": -1},
        {"top_k": 0},
    ):
        assert server.post(TEXT, PROMPT, **more).status_code == 200, more
    nothing = dict.fromkeys(
        (
            "n",
            "temperature",
            "top_p",
            "stop",
            "seed",
            "logit_bias",
            "logprobs",
            "max_tokens",
            "user",
        )
    )
    assert server.post(TEXT, PROMPT, **nothing).status_code == 200, "null is a field's default"


MESSAGES: list[Any] = [
    None, "str", [], [123], [{}], [None], [[]], [{"role": 123, "content": "a"}], [{"role": "user"}], [{"content": "a"}],
    [{"role": "user", "content": None}], [{"role": "user", "content": 3}], [{"role": "nobody", "content": "a"}],
    [{"role": "user", "content": []}], [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
    [{"role": "tool", "content": "a", "tool_call_id": "1"}],
    [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}],
    [{"role": "user", "content": "a"}] * 2000,
]  # fmt: skip


@pytest.mark.parametrize("messages", MESSAGES)
def test_c9_messages(server, messages):
    refused(server.post(CHAT, TALK, messages=messages))


SCHEMAS: list[Any] = [
    {"type": "nothing"}, {"type": "string", "pattern": "("}, {"pattern": "(?=a)"}, {"uniqueItems": True}, {"not": {}},
    {"if": {}}, {"$ref": "http://127.0.0.1:1/schema.json"}, {"$ref": "#/nowhere"}, {"minLenght": 3}, {"contains": {}},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"type": "object", "propertyNames": {}},
    {"description": "a" * 70_000},
    {"type": "string", "format": "nonsense"}, {"type": "integer", "minimum": 3, "maximum": 2},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS)
def test_c10_schemas_that_cannot_be_enforced(server, schema):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    refused(server.post(CHAT, TALK, response_format=form))


@pytest.mark.parametrize(
    "more",
    [
        {"guided_regex": "("}, {"guided_regex": "(?<=a)b"}, {"guided_regex": ""}, {"guided_regex": "a" * 70_000},
        {"guided_regex": r"[^\s\S]"}, {"guided_grammar": "start: start"}, {"guided_json": {"$ref": "#"}},
        {"guided_grammar": "start: nowhere"}, {"guided_grammar": "nonsense ::= ("}, {"guided_json": "x"},
        {"guided_regex": "a", "guided_grammar": "start: /a/"}, {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}}, {"response_format": "json"}, {"response_format": {}},
        {"guided_regex": "(" * 5000 + ")" * 5000},
        {"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"a": 1}}, {"tools": [{"a": 1}]}, {"logprobs": 3},
        {"functions": [{"name": "f"}]}, {"tool_choice": "required"}, {"top_logprobs": 3}, {"n": 65},
        {"logprobs": True, "top_logprobs": 21}, {"max_completion_tokens": 0}, {"stream_options": {}},
    ],
)  # fmt: skip
def test_c10_c11_c28_what_a_chat_may_not_ask_for(server, more):
    refused(server.post(CHAT, TALK, **more))


def test_c10_two_forms_are_named(server):
    forms = {"guided_regex": "a", "guided_json": {}, "response_format": {"type": "text"}}
    answer = server.post(CHAT, {**TALK, **forms})
    assert "guided_json and guided_regex exclude each other" in refused(answer)
    assert answer.json()["error"]["param"] == "guided_json"


def test_c10_an_explosive_grammar_ends_soon(server):
    start = time.monotonic()
    deep: Any = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    wide = {"anyOf": [{"type": "string", "pattern": f"(a|b){{{n},{n + 50}}}c"} for n in range(400)]}
    for schema in (deep, wide):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        assert server.post(CHAT, TALK, response_format=form).status_code in (200, 400)
    answer = server.post(CHAT, TALK, guided_regex="((a{1,1000}){1,1000}){1,1000}")
    assert answer.status_code in (200, 400) and time.monotonic() - start < 30
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing", "../../x", "file://../etc/passwd", "a\x00b", "/etc/passwd", "..%2f..%2fx"]
)
def test_c12_unknown_models(server, name):
    refused(server.post(TEXT, PROMPT, model=name), 404, "model")
    from urllib.parse import quote

    refused(server.get(f"/v1/models/{quote(name, safe='')}"), 404)


def test_c13_keys(chat_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsecret-1\n\nsecret-2\n")
    with started(tmp_path, f"{chat_model} --api-key-file {keys}") as item:
        paths = [TEXT, CHAT, "/tokenize", "/nowhere"]
        wrong = [
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer"},
            {"authorization": "Basic secret-1"},
        ]
        wrong += [{"authorization": "Bearer secret-1x"}, {"authorization": "secret-1"}]
        for header in wrong:
            for path in paths:
                assert "key" in refused(item.post(path, PROMPT, headers=header), 401)
            for path in (
                "/v1/models",
                "/metrics",
                "/openapi.json",
                "/version",
                "/load",
                "/tokenizer_info",
            ):
                refused(item.get(path, headers=header), 401)
        odd = httpx.Headers([(b"authorization", "Bearer schlüssel".encode())])
        refused(item.post(TEXT, PROMPT, headers=odd), 401)
        for key in ("secret-1", "secret-2"):
            assert (
                item.post(TEXT, PROMPT, headers={"authorization": f"Bearer {key}"}).status_code
                == 200
            )
        assert item.get("/health").status_code == 200
        assert "secret" not in item.log.read_text()


def test_c14_other_sites_are_kept_out(server):
    json_kind = {"content-type": "application/json"}
    preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = server.client().request("OPTIONS", TEXT, headers=preflight)
    assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
    for header in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        refused(server.post(TEXT, PROMPT, headers={**json_kind, **header}), 403)
    for host in ("evil.example", "127.0.0.1.evil.example"):
        refused(server.get("/v1/models", headers={"host": host}), 403)


def test_c23_nothing_that_is_said_is_logged_and_no_log_is_forged(server):
    message = 'kept-to-ourselves\n{"forged": true}\x1b[31m'
    server.post(TEXT, PROMPT, prompt=message, headers={"x-request-id": "mine-1"})
    server.get("/v1/models/%1b%5b31m%0a%7b%22forged%22%3atrue%7d")
    server.post(TEXT, PROMPT, model=message)
    odd = server.post(TEXT, PROMPT, headers={"x-request-id": "a b\tc"})
    assert odd.headers["x-request-id"].startswith("req-")
    text = server.log.read_text()
    assert "kept-to-ourselves" not in text and "\x1b" not in text
    local = server.line("mine-1")
    assert not any("forged" in line for line in server.lines())
    assert local["status"] == 200 and local["path"] == TEXT and local["generated_tokens"] == 2


UNKNOWN: dict[str, Any] = {
    "min_tokens": 3, "bad_words": ["king"], "allowed_token_ids": [5], "truncate_prompt_tokens": 1, "priority": 5,
    "continue_final_message": True, "add_generation_prompt": False, "stop_sequences": ["a"], "n_predict": 1,
    "max_new_tokens": 1, "num_predict": 1, "max_length": 3, "min_length": 3, "repeat_penalty": 1.1, "typical_p": 0.5,
    "mirostat": 2, "tfs_z": 0.5, "top_a": 0.1, "dry_multiplier": 1, "xtc_probability": 0.5, "num_beams": 4,
    "length_penalty": 0.5, "early_stopping": True, "do_sample": False, "num_return_sequences": 2, "no_repeat_ngram": 2,
    "logits_processors": ["x"], "skip_special_tokens": False, "include_stop_str_in_output": True, "detokenize": False,
    "return_tokens_as_token_ids": True, "return_token_ids": True, "reasoning_effort": "high", "verbosity": "low",
    "web_search_options": {}, "audio": {"voice": "a"}, "modalities": ["text", "audio"], "documents": [{"a": "b"}],
    "lora": "x", "adapter": "x", "cache_salt": "x", "kv_transfer_params": {}, "surprise": {"deep": [1]}, "plugins": [],
    "prompt_embeds": "x", "thinking": {"type": "enabled"}, "extra_body": {"top_k": 1},
}  # fmt: skip
HARMLESS: dict[str, Any] = {
    "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "x",
    "prompt_cache_key": "x", "prompt_cache_retention": "24h", "parallel_tool_calls": False, "prediction": {"a": "b"},
    "min_tokens": 0, "skip_special_tokens": True, "modalities": ["text"], "bad_words": [], "surprise": None,
}  # fmt: skip


@pytest.mark.parametrize(("path", "body"), [(TEXT, PROMPT), (CHAT, TALK)])
def test_c27_a_field_that_would_change_the_answer_is_refused_by_its_name(server, path, body):
    plain = server.json(path, body, seed=1)["choices"]
    for name, value in UNKNOWN.items():
        assert refused(server.post(path, {**body, name: value})).startswith(
            f"{name} is no field here"
        ), name
    for name in (r"\ud800", "", r"\n", "a" * 10_000):
        odd = f'{json.dumps(body)[:-1]}, "{name}": 1}}'
        refused(server.send(path, odd))
    second = "max_completion_tokens" if path == TEXT else "suffix"
    assert second in refused(server.post(path, {**body, second: 3}))
    response = server.post(path, {**body, "seed": 1, **HARMLESS})
    assert response.status_code == 200 and response.json()["choices"] == plain
    for name, meant in {
        "n_predict": "max_tokens",
        "stop_sequences": "stop",
        "repeat_penalty": "repetition",
    }.items():
        assert f'did you mean "{meant}' in refused(server.post(path, {**body, name: 3}))


def test_c27_fields_of_other_paths_and_of_parts_are_refused_by_name(server):
    assert "pooling" in refused(
        server.post("/v1/embeddings", model="vectors", input="a", pooling="max")
    )
    rank = {"model": "vectors", "query": "a", "documents": [{"text": "b", "id": 3}]}
    assert server.post("/v2/rerank", rank).status_code == 200, (
        "what a document holds beside its text is data"
    )
    assert "max_tokens_per_doc" in refused(server.post("/v2/rerank", rank, max_tokens_per_doc=4))
    assert "weight" in refused(
        server.post(CHAT, messages=[{"role": "user", "content": "a", "weight": 1}])
    )
    assert "cut" in refused(server.post("/tokenize", prompt="a", cut=True))
    assert "top" in refused(server.post(TEXT, PROMPT, top=3))


def test_c27_a_name_twice_is_its_last(server):
    twice = b'{"prompt": "a", "prompt": "O Romeo", "max_tokens": 1}'
    answer = server.send(TEXT, twice)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"guided_jsn": {}}, "guided_json"), ({"guided_choice": ["a"]}, "guided_json"),
        ({"grammar": "a"}, "guided_grammar"), ({"ebnf": "a"}, "guided_grammar"), ({"inspct": ["lens"]}, "inspect"),
        ({"response_fromat": {"type": "json_object"}}, "response_format"), ({"structured_outputs": {}}, "guided_json"),
        ({"max_token": 3}, "max_tokens"), ({"temprature": 0}, "temperature"),
        ({"response_format": {"type": "json_schema", "jsonschema": {}}}, "json_schema"),
    ],
)  # fmt: skip
def test_d_a_misspelt_field_is_refused_with_the_nearest(server, more, message):
    for path, body in ((TEXT, PROMPT), (CHAT, TALK)):
        output = refused(server.post(path, body, **more))
        assert message in output and next(reversed(more)) in output


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"temperature": -1}, "temperature is -1; give 0 or more."), ({"n": "3"}, 'n is "3"; give a whole number.'),
        ({"stop": 3}, "stop is 3; give a text or a list."), ({"top_p": 0}, "top_p is 0; give more than 0."),
        ({"stop": [""]}, "stop[0] is empty; give at least one of its characters."), ({"n": 65}, "give 64 or less."),
        ({"stop": ["a"] * 17}, "stop has more than 16 entries; give fewer."), ({"seed": 1.5}, "give a whole number."),
        ({"response_format": {"type": "xml"}}, "give 'text', 'json_object' or 'json_schema'."),
        ({"logit_bias": []}, "logit_bias is a list; give an object."), ({"stream": 1}, "give true or false."),
        ({"inspect": ["lens"], "positions": "old"}, "positions is \"old\"; give a list or 'new'."),
    ],
)  # fmt: skip
def test_d_a_field_what_was_wrong_and_what_is_allowed(server, more, message):
    assert refused(server.post(TEXT, PROMPT, **more)).endswith(message)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", TEXT), ("DELETE", TEXT), ("PUT", TEXT), ("PATCH", "/v1/models")]
)
def test_other_methods(server, method, path):
    refused(server.client().request(method, path), 405)


def test_no_such_path(server):
    for path in ("/", "/v1", "/v1/nothing", "/docs", "/../etc/passwd", "/v1//completions"):
        refused(server.get(path), 404)


@pytest.mark.parametrize("depth", [400, 3_000, 100_000])
def test_arguments_of_a_call_that_are_nested_without_end(server, depth):
    """They are JSON inside JSON: the body around them is read well."""
    arguments = '{"a":' + "[" * depth + "]" * depth + "}"
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [*TALK["messages"], {"role": "assistant", "tool_calls": [call]}]
    for path in (CHAT, "/tokenize"):
        assert "JSON object" in refused(server.post(path, {"messages": messages}))
    item = {"type": "function_call", "call_id": "1", **call["function"]}
    assert "JSON object" in refused(server.post("/v1/responses", {"input": [item]}))

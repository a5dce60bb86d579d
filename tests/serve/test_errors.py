"""Exceptions that nobody foresaw, in every family of paths: OpenAI's error object, an id, the
traceback in the log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.serve import app, chat, completions, inspecting, loading, searching, served_models
from glassformer.serve.asgi import replies
from glassformer.serve.engine import looks
from glassformer.serve.prometheus import Metrics
from glassformer.tasks.predictions import Filling

ERRORS = [
    KeyError("memory"),
    TypeError("t"),
    IndexError("i"),
    AssertionError("a"),
    OSError(28, "o"),
    RuntimeError("r"),
]
TALK = [{"role": "user", "content": "hi"}]
COMPUTED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "O Romeo", "max_tokens": 4},
    "/v1/chat/completions": {"messages": TALK, "max_tokens": 4},
    "/v1/inspect": {"prompt": "O", "inspect": ["logits"]},
    "/v1/embeddings": {"model": "vectors", "input": "a"},
    "/v1/score": {"model": "vectors", "text_1": "a", "text_2": "b"},
    "/v2/rerank": {"model": "vectors", "query": "a", "documents": ["b"]},
    "/classify": {"model": "labels", "input": "a"},
    "/v1/tag": {"model": "names", "input": "a b"},
    "/v1/fill": {"model": "labels", "input": "a ___"},
    "/v1/translate": {"model": "translator", "input": "the cat"},
}


@pytest.fixture(scope="module")
def client(chat_model, other_models):
    models = loading.open_models(
        [str(chat_model), *map(str, other_models.values())],
        served_models.EngineLimits(),
        dtype="float32",
    )
    outer, api = app.application(models, "0", hosts=None)
    with TestClient(outer, raise_server_exceptions=True) as item:
        item.api = api
        yield item
    models.close()


def failing(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def logged(text: str, error: Exception) -> str:
    """The request's id in the one line of the log that holds the traceback."""
    lines = [json.loads(line) for line in text.splitlines()]
    (line,) = [line for line in lines if "traceback" in line]
    assert line["error"] == type(error).__name__ and "in fail" in line["traceback"]
    assert (
        len([item for item in lines if item.get("status") == 500 and item["id"] == line["id"]]) <= 1
    )
    return str(line["id"])


def check(answer: Any, error: Exception, log: str) -> None:
    """The form of a 500."""
    body = answer.json()
    assert answer.status_code == 500 and set(body) == {"error", "request_id"}
    assert (
        set(body["error"]) == {"message", "type", "param", "code"}
        and body["error"]["type"] == "server_error"
    )
    assert type(error).__name__ in body["error"]["message"] and "Traceback" not in answer.text
    assert body["request_id"] == answer.headers["x-request-id"] == logged(log, error)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("path", COMPUTED)
def test_what_computes(client, monkeypatch, capsys, path, error):
    monkeypatch.setattr(served_models, "submit", failing(error))
    check(client.post(path, json=COMPUTED[path]), error, capsys.readouterr().err)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("path", "home", "name"),
    [
        ("/v1/models", app, "model_card"),
        ("/v1/models/tiny", app, "model_card"),
        ("/metrics", Metrics, "text"),
        ("/tokenize", app, "check_characters"),
    ],
)
def test_what_says(client, monkeypatch, capsys, path, home, name, error):
    monkeypatch.setattr(home, name, failing(error))
    answer = client.post(path, json={"prompt": "a"}) if path == "/tokenize" else client.get(path)
    check(answer, error, capsys.readouterr().err)


def test_too_little_memory_is_named_and_logged(client, monkeypatch, capsys):
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(served_models, "submit", failing(error))
    answer = client.post("/v1/completions", json=COMPUTED["/v1/completions"])
    assert answer.json()["error"]["code"] == "out_of_memory"
    logged(capsys.readouterr().err, error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("after", [0, 2])
def test_the_middle_of_a_stream(client, monkeypatch, capsys, path, error, after):
    """Before the first piece it is a 500, afterwards an event; the stream ends as every stream
    does."""
    push, pieces = completions.Choice.push, list[object]()

    def pushed(*arguments):
        pieces.append(1)
        return (push if len(pieces) <= after else failing(error))(*arguments)

    monkeypatch.setattr(completions.Choice, "push", pushed)
    # with log-probabilities, since a plain chunk is written around its text without a push
    options = {"stream": True, "ignore_eos": True, "logprobs": True if "chat" in path else 1}
    answer = client.post(path, json={**COMPUTED[path], **options})
    if not after:
        check(answer, error, capsys.readouterr().err)
        return
    *chunks, last, done, nothing = answer.text.split("\n\n")
    assert answer.status_code == 200 and done == "data: [DONE]" and nothing == "" and chunks
    data = json.loads(last.removeprefix("data: "))
    assert (
        data["error"]["type"] == "server_error" and type(error).__name__ in data["error"]["message"]
    )
    assert (
        data["request_id"]
        == answer.headers["x-request-id"]
        == logged(capsys.readouterr().err, error)
    )


def test_a_body_cannot_forge_a_line(client, monkeypatch, capsys):
    error = RuntimeError('no\n{"status": 200, "forged": true}\x1b[31m')
    monkeypatch.setattr(served_models, "submit", failing(error))
    client.post("/v1/completions", json=COMPUTED["/v1/completions"])
    text = capsys.readouterr().err
    assert "\x1b" not in text and not any(
        "forged" in json.loads(line) for line in text.splitlines()
    )


@pytest.mark.parametrize(
    ("owner", "name", "path", "more"),
    [
        (inspecting, "_plan_look", "/v1/completions", {"inspect": ["*.resid"]}),
        (inspecting, "_plan_look", "/v1/inspect", {}),
        (looks, "must_match", "/v1/completions", {"inspect": ["*.resid"]}),
        (Filling, "update", "/v1/fill", {"order": "left"}),
        (chat.Message, "to_template", "/v1/chat/completions", {}),
    ],
)
def test_what_takes_long_keeps_no_other_request_waiting(
    client, monkeypatch, owner, name, path, more
):
    """It runs in a thread without an event loop."""
    loops, work = list[bool](), getattr(owner, name)

    def noted(*args):
        loops.append(asyncio._get_running_loop() is not None)
        return work(*args)

    monkeypatch.setattr(owner, name, noted)
    answer = client.post(path, json={**COMPUTED[path], **more})
    assert answer.status_code == 200, answer.text
    assert loops and not any(loops)


def test_more_ways_to_fill_blanks_than_fit_in_memory_are_refused(client, monkeypatch):
    """By the numbers that rank them, and by the characters of their texts."""
    body = {"model": "labels", "input": "a ___ b ___", "top": 7}
    for order in ("apart", "left", "sure"):
        for name in ("MOST_FILL_LOGITS", "MOST_FILL_TEXT"):
            assert client.post("/v1/fill", json={**body, "order": order}).status_code == 200
            with monkeypatch.context() as patch:
                patch.setattr(searching, name, 40)
                answer = client.post("/v1/fill", json={**body, "order": order})
            assert answer.status_code == 400 and "2 blanks with top = 7" in answer.text
    limit = 2 * 300 * 7  # blanks, vocabulary, top
    monkeypatch.setattr(searching, "MOST_FILL_LOGITS", limit)
    for top, status in ((7, 200), (8, 400)):
        fields = {**body, "top": top, "order": "sure"}
        assert client.post("/v1/fill", json=fields).status_code == status


def test_the_engine_is_fair_to_keys_and_where_none_is_needed_to_addresses(
    client, chat_model, monkeypatch
):
    """Two clients behind one address have a share each, one with two addresses has one; no key is
    passed on."""
    clients, submit = list[str](), served_models.submit

    def submitted(engine, requests):
        clients.extend(request.client for request in requests)
        return submit(engine, requests)

    monkeypatch.setattr(served_models, "submit", submitted)
    models = loading.open_models([str(chat_model)], served_models.EngineLimits(), dtype="float32")
    outer, _ = app.application(models, "0", hosts=None, keys=["secret-1", "secret-2"])
    try:
        for address, key in (("1.1.1.1", 1), ("2.2.2.2", 1), ("1.1.1.1", 2)):
            with TestClient(outer, client=(address, 5000)) as item:
                header = {"authorization": f"Bearer secret-{key}", "x-forwarded-for": "9.9.9.9"}
                for path in ("/v1/completions", "/v1/chat/completions"):
                    assert item.post(path, json=COMPUTED[path], headers=header).status_code == 200
    finally:
        models.close()
    assert clients == ["key 0"] * 4 + ["key 1"] * 2
    client.post(
        "/v1/completions", json=COMPUTED["/v1/completions"], headers={"x-forwarded-for": "9.9.9.9"}
    )
    assert clients[-1] == "testclient"


def test_logits_of_few_rows_are_held_at_once(client, monkeypatch):
    """The rows that fill several blanks wait for their turn before their logits are computed."""
    sizes, submit = list[int](), served_models.submit

    def submitted(engine, requests):
        sizes.append(len(requests))
        return submit(engine, requests)

    monkeypatch.setattr(served_models, "submit", submitted)
    body = {"model": "labels", "input": "a ___ b ___", "top": 20, "order": "sure"}
    expected = client.post("/v1/fill", json=body).json()
    assert max(sizes) == 20
    sizes.clear()
    monkeypatch.setattr(searching, "FILL_LOGITS_AT_ONCE", 3 * 2 * 300)
    assert client.post("/v1/fill", json=body).json() == expected
    assert max(sizes) == 3 and sum(sizes) == 21


def test_answers_have_a_bound_in_bytes(client, monkeypatch):
    """The log-probabilities of prompts, of one request and of all together; all is given back."""
    body = {"prompt": ["O Romeo"] * 4, "max_tokens": 0, "echo": True, "logprobs": 4}
    assert client.post("/v1/completions", json=body).status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(completions, "MOST_SCORES", 20)
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 400 and "log-probabilities" in answer.text
        single = {**body, "prompt": [[5, 6]], "logprobs": 9}
        assert client.post("/v1/completions", json=single).status_code == 200
    budget = client.api.answers
    monkeypatch.setattr(budget, "most", 1000)
    for path, fields in (
        ("/v1/completions", body),
        ("/v1/embeddings", COMPUTED["/v1/embeddings"] | {"input": ["a"] * 9}),
    ):
        answer = client.post(path, json=fields)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert not budget.held


def test_the_description_is_written_once(client, monkeypatch):
    """It has 140 KB, and writing it keeps the event loop."""
    first = client.get("/openapi.json")
    monkeypatch.setattr(replies, "to_json", failing(AssertionError("written again")))
    assert client.get("/openapi.json").content == first.content
    assert first.json()["openapi"] == "3.1.0"


def test_half_a_surrogate_pair_is_written_as_a_question_mark():
    """UTF-8 holds none, whichever way an answer is written."""
    value = {"text": "a\ud800"}
    written = {replies.small_json(value), replies.encode_json(value)}
    assert written == {b'{"text":"a?"}'}
    assert replies.encode_json({**value, "x": float("nan")}) == b'{"text":"a?","x":"NaN"}'

"""What no other test of the server holds of the two checklists, and the page that says which test
holds which line."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import httpx
import pytest

from .conftest import events
from .test_bad_input import CHAT, PROMPT, TALK, TEXT, refused

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "serve-checks.md"


def test_the_page_names_tests_that_are_there_and_leaves_no_line_out():
    page = PAGE.read_text(encoding="utf-8")
    present = set[str]()
    for file in HERE.glob("test_*.py"):
        present.update(
            re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        )
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named <= present, named - present
    rows = [line.split("|")[1:4] for line in page.splitlines() if re.match(r"\| [CD]\d", line)]
    assert [row[0].strip() for row in rows] == [f"C{n}" for n in range(1, 31)] + [
        f"D{n}" for n in range(1, 14)
    ]
    assert all("`test_" in row[2] or "falls short" in row[2] for row in rows)


def test_c16_who_leaves_a_translation_leaves_nothing_behind(server):
    body = httpx.Request(
        "POST", "http://a/", json={"model": "translator", "input": ["the cat sat"] * 60, "beams": 8}
    )
    head = "POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for _ in range(4):
        with server.connect() as item:
            item.sendall(
                f"{head}Content-Length: {len(body.content)}\r\n\r\n".encode() + body.content
            )
            time.sleep(0.2)
    assert server.idle(20) and server.metric("kv_cache_usage_perc") == 0
    assert server.get("/load").json() == {"server_load": 0}


def test_c24_nothing_is_fetched(server):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.5)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": url}}}
        image = [{"type": "image_url", "image_url": {"url": url}}]
        refused(server.post(CHAT, TALK, response_format=form))
        refused(server.post(CHAT, TALK, messages=[{"role": "user", "content": image}]))
        assert server.post(TEXT, PROMPT, prompt=f"Look at {url}").status_code == 200
        assert server.post("/v1/embeddings", input=url).status_code == 200
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize(("path", "body"), [(TEXT, PROMPT), (CHAT, TALK)])
def test_d3_all_chunks_of_an_answer_begin_alike(server, path, body):
    query = {**body, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    heads = {
        tuple(event[name] for name in ("id", "object", "created", "model"))
        for event in events(server.post(path, query))
    }
    assert len(heads) == 1


def test_d6_best_of_as_many_as_are_answered(server):
    body = server.json(TEXT, PROMPT, n=2, best_of=2)
    assert len(body["choices"]) == 2


def test_d7_a_chat_is_as_long_as_was_asked_and_takes_biases(server):
    eos = server.get("/tokenizer_info").json()["eos_token_id"]
    for more, count in (
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 2, "max_tokens": 9}, 2),
    ):
        body = server.json(CHAT, {**TALK, **more, "logit_bias": {str(eos): -100}})
        assert (
            body["usage"]["completion_tokens"] == count
            and body["choices"][0]["finish_reason"] == "length"
        )
    body = server.json(CHAT, TALK, max_completion_tokens=3, logit_bias={str(eos): 100})
    assert (
        body["choices"][0]["finish_reason"] == "stop"
        and body["choices"][0]["message"]["content"] == ""
    )


def test_d9_embeddings_of_several_ids_and_their_usage(server):
    texts = ["the cat", "a log and a mat"]
    ids = [
        server.json("/tokenize", model="vectors", prompt=text, add_special_tokens=False)["tokens"]
        for text in texts
    ]
    by_text, by_ids = (
        server.json("/v1/embeddings", model="vectors", input=item) for item in (texts, ids)
    )
    for item, by_id in zip(by_text["data"], by_ids["data"], strict=True):
        assert item["embedding"] == pytest.approx(by_id["embedding"], abs=1e-6)
    second_ids = by_text["usage"]["prompt_tokens"]
    assert (
        by_text["usage"]
        == by_ids["usage"]
        == {"prompt_tokens": second_ids, "total_tokens": second_ids}
    )
    assert second_ids >= sum(map(len, ids))

"""Clients that others wrote: OpenAI's, Cohere's, schemathesis, lm-evaluation-harness; a crowd, half
of which leaves."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import glassformer

from .conftest import started
from .test_process import FAILS, FAULTS, SLOW

openai = pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0.7, "seed": 3}
# among others, by a server of one model of this kind: not all that is made up means something
ANSWERED = {
    "tiny": {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/inspect"},
    "vectors": {"/v1/embeddings", "/v1/score", "/v1/rerank"},
    "labels": {"/v1/classify"},
    "names": {"/v1/tag"},
    "translator": {"/v1/translate", "/tokenize"},
}
TALK: Any = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_openai_completions(client):
    response = client.completions.create(prompt="O Romeo", **ASKED)
    pieces = list(client.completions.create(prompt="O Romeo", stream=True, **ASKED))
    assert "".join(piece.choices[0].text for piece in pieces) == response.choices[0].text != ""
    assert (
        response.usage.completion_tokens == 12 and pieces[-1].choices[0].finish_reason == "length"
    )
    scored = client.completions.create(
        model="tiny", prompt="O Romeo", max_tokens=0, echo=True, logprobs=2
    )
    assert (
        scored.choices[0].logprobs.token_logprobs[0] is None
        and "".join(scored.choices[0].logprobs.tokens) == "O Romeo"
    )


def test_openai_chat(client):
    response = client.chat.completions.create(messages=TALK, logprobs=True, top_logprobs=2, **ASKED)
    pieces = list(
        client.chat.completions.create(
            messages=TALK, stream=True, stream_options={"include_usage": True}, **ASKED
        )
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == response.choices[0].message.content and pieces[-1].usage == response.usage
    assert (
        pieces[0].choices[0].delta.role == "assistant"
        and len(response.choices[0].logprobs.content) == 12
    )
    with client.chat.completions.stream(
        messages=TALK, **ASKED, extra_body={"guided_regex": "yes|no"}
    ) as stream:
        assert stream.get_final_completion().choices[0].message.content in ("yes", "no")


def test_openai_fields_that_change_no_answer(client):
    """Fields that honest programs send beside the question; and a message given back as it was
    answered."""
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
    }
    harmless |= {"safety_identifier": "x", "prompt_cache_key": "x", "parallel_tool_calls": True}
    plain = client.chat.completions.create(messages=TALK, **ASKED)
    more = client.chat.completions.create(messages=TALK, **harmless, **ASKED)
    assert more.choices[0].message == plain.choices[0].message
    messages = [
        plain.choices[0].message,
        plain.choices[0].message.model_dump(),
        {"role": "assistant", "content": None},
    ]
    for message in messages:
        again = client.chat.completions.create(messages=[*TALK, message, *TALK], **ASKED)
        assert again.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="min_tokens is no field here"):
        client.chat.completions.create(messages=TALK, extra_body={"min_tokens": 3}, **ASKED)


def test_openai_async_models_and_raw_responses(server, client):
    assert (
        next(iter(client.models.list())).id == "tiny"
        and client.models.retrieve("tiny").id == "tiny"
    )
    raw = client.completions.with_raw_response.create(
        prompt="O", extra_headers={"X-Request-Id": "mine"}, **ASKED
    )
    assert (
        raw.headers["x-request-id"] == "mine"
        and raw.parse().choices[0].text
        and raw.parse()._request_id == "mine"
    )

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as item:
            stream = await item.completions.create(prompt="O", stream=True, **ASKED)
            return "".join([piece.choices[0].text async for piece in stream])

    assert asyncio.run(ask()) == raw.parse().choices[0].text


def test_openai_errors_have_their_classes(client):
    with pytest.raises(openai.NotFoundError) as result:
        client.completions.create(**{**ASKED, "model": "nothing"}, prompt="a")
    assert result.value.code == "model_not_found" and result.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="this model's maximum context length is "):
        client.completions.create(**{**ASKED, "max_tokens": 999}, prompt="a")
    with pytest.raises(openai.BadRequestError, match="writes no calls of tools"):
        client.chat.completions.create(
            messages=TALK, tools=[{"type": "function", "function": {"name": "f"}}], **ASKED
        )


@pytest.fixture(scope="module")
def narrow(chat_model, tmp_path_factory):
    words = f"{chat_model} --use {FAULTS} --max-queue 1 --max-sequences 1"
    with started(tmp_path_factory.mktemp("narrow"), words) as item:
        yield item


def test_openai_retries_until_there_is_room(narrow):
    async def ask(item):
        response = await item.completions.create(prompt="O", model="tiny", max_tokens=4, seed=SLOW)
        return str(response.choices[0].text)

    async def crowd():
        async with openai.AsyncOpenAI(
            base_url=f"{narrow.url}/v1", api_key="none", max_retries=20
        ) as item:
            return await asyncio.gather(*(ask(item) for _ in range(8)))

    assert len(set(asyncio.run(crowd()))) == 1
    assert any(line["status"] == 429 for line in narrow.lines()), "some were sent away first"


def test_openai_raises_what_fails_in_a_stream(narrow):
    client = openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="none", max_retries=0)
    stream = client.completions.create(
        prompt="O", model="tiny", max_tokens=40, seed=FAILS, stream=True
    )
    with pytest.raises(openai.APIError, match="RuntimeError"):
        list(stream)


def test_a_crowd_of_whom_half_leave(server):
    """200 clients; nothing stays behind, and those that stay get what they would get alone."""
    body = {"prompt": "O Romeo", "max_tokens": 8, "seed": 1, "temperature": 0}
    alone = server.json("/v1/completions", body)["choices"][0]["text"]
    luck = random.Random(1)

    async def stay(client):
        answer = await client.post("/v1/completions", json=body)
        return (
            str(answer.json()["choices"][0]["text"])
            if answer.status_code == 200
            else str(answer.status_code)
        )

    async def leave(client):
        long = {**body, "max_tokens": 200, "stream": luck.random() < 0.5}
        try:
            await asyncio.wait_for(client.post("/v1/completions", json=long), luck.random())
        except TimeoutError:
            return "left"
        return "answered"

    async def crowd():
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*((stay if n % 2 else leave)(client) for n in range(200)))

    result = asyncio.run(crowd())
    stayed = set(result[1::2])
    assert stayed <= {alone, "429"} and alone in stayed and "left" in result
    assert server.idle(30) and server.metric("kv_cache_usage_perc") == 0
    assert server.json("/v1/completions", body)["choices"][0]["text"] == alone


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["tiny", "vectors", "labels", "names", "translator"])
def test_schemathesis_finds_nothing(server, other_models, tmp_path, answers):
    """Its own openapi.json: no 5xx, every answer as it is described there.

    A request that means something names no model, so the server's first one answers: a server for
    each kind.
    """
    pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")
    program = Path(sys.executable).with_name("schemathesis")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    with contextlib.ExitStack() as stack:
        if answers != "tiny":
            server = stack.enter_context(
                started(tmp_path, f"{other_models[answers]} --dtype float32")
            )
        words = [
            str(program),
            "run",
            f"{server.url}/openapi.json",
            "--checks",
            checks,
            "--max-examples",
            "40",
        ]
        words += [
            "--phases",
            "examples,coverage,fuzzing",
            "--seed",
            "1",
            "--no-color",
            "--request-timeout",
            "60",
        ]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=900)
        assert done.returncode == 0, done.stdout[-4000:]
        assert server.idle()
        answered = {line["path"] for line in server.lines() if line.get("status") == 200}
        assert ANSWERED[answers] <= answered


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["huggingface", "remote"])
def test_lm_eval_gets_the_scores_that_it_gets_in_process(server, chat_model, tmp_path, reads):
    """lm-evaluation-harness's `local-completions`: one of its own requests, over HTTP and in this
    process."""
    models = pytest.importorskip(
        "lm_eval.models.openai_completions", reason="needs pip install 'lm_eval[api]'"
    )
    instances = pytest.importorskip("lm_eval.api.instance")
    from glassformer.commands.harness import harness_model

    folder = tmp_path / "tokenizer"
    shutil.copytree(chat_model, folder)
    url = f"{server.url}/v1/completions"
    options = {
        "model": "tiny",
        "base_url": url,
        "tokenizer_backend": reads,
        "tokenizer": str(folder),
    }
    over = models.LocalCompletionsAPI(**options, max_length=256, batch_size=3)
    pairs = [
        ("O Romeo, Romeo", " wherefore art thou"),
        ("What is", " your name"),
        ("The king", " is dead"),
        ("A", " B C D"),
    ]
    result = [
        instances.Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=n)
        for n, pair in enumerate(pairs)
    ]
    model, tokenizer = glassformer.load(chat_model, dtype="float32")
    local = harness_model(model, tokenizer).loglikelihood(result)
    present = over.loglikelihood(result)
    assert [item[0] for item in present] == pytest.approx([item[0] for item in local], abs=1e-4)
    assert [item[1] for item in present] == [item[1] for item in local]

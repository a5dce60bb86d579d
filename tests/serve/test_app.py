"""What one client sends does not keep the others waiting: /health is asked again and again
meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from .conftest import Server, started
from .test_bad_input import TALK, refused

# seconds that /health may take, or this share of the answer's on a busy machine
WORST, SHARE = 1.5, 0.25
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
LINES = [
    f"line {number}: " + "once upon a time there was a king and " * 12 for number in range(100)
]


@pytest.fixture(scope="module")
def wide(chat_model, other_models, tmp_path_factory):
    words = f"{chat_model} {other_models['vectors']} --dtype float32 --max-queue 2048"
    with started(tmp_path_factory.mktemp("wide"), words) as item:
        yield item


def slowest_health(server: Server, path: str, body: bytes, status: int) -> tuple[float, float]:
    """The longest that /health takes while the server answers, and how long the answer takes."""

    async def ask() -> tuple[float, float]:
        worst = 0.0
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            await client.get("/health")
            sent = time.monotonic()
            query = asyncio.ensure_future(asyncio.to_thread(send))
            while not query.done():
                start = time.monotonic()
                (await client.get("/health")).raise_for_status()
                worst = max(worst, time.monotonic() - start)
                await asyncio.sleep(0.01)
        answer = query.result()
        assert answer.status_code == status, answer.text[:300]
        return worst, time.monotonic() - sent

    def send() -> httpx.Response:
        kind = {"content-type": "application/json"}
        return httpx.post(f"{server.url}{path}", content=body, headers=kind, timeout=300)

    return asyncio.run(ask())


HEAVY: dict[str, tuple[str, dict[str, Any], int]] = {
    "continuations": (TEXT, {"prompt": LINES[:16], "n": 64, "max_tokens": 4, "logprobs": 5}, 200),
    "scores": (TEXT, {"prompt": LINES, "max_tokens": 0, "echo": True, "logprobs": 20}, 200),
    "a stream of scores": (
        TEXT,
        {"prompt": LINES, "max_tokens": 1, "echo": True, "logprobs": 20, "stream": True},
        200,
    ),
    "vectors": (
        "/v1/embeddings",
        {"model": "vectors", "input": [f"text {n}" for n in range(1000)]},
        200,
    ),
    "ids": (TEXT, {"prompt": [5] * 2_000_000, "max_tokens": 1}, 400),
    "words to ids": (
        "/tokenize",
        {"prompt": "once upon a time " * 40_000, "return_token_strs": True},
        200,
    ),
    "ids to words": ("/detokenize", {"tokens": [5] * 1_000_000}, 200),
    "parts": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1000}] * 200},
        400,
    ),
    "fields": (TEXT, {"prompt": "a", **{f"field {n}": n for n in range(200_000)}}, 400),
}


@pytest.mark.parametrize("name", HEAVY)
def test_one_request_does_not_stop_the_others(wide, name):
    path, body, status = HEAVY[name]
    worst, full = slowest_health(wide, path, json.dumps(body).encode(), status)
    assert worst < max(WORST, SHARE * full)
    assert wide.idle()


def test_prompts_times_n_is_bounded(wide):
    start = time.monotonic()
    body = {"prompt": LINES[:17], "n": 64, "max_tokens": 1}
    assert (
        "1,088 continuations" in refused(wide.post(TEXT, body), param="n")
        and time.monotonic() - start < WORST
    )
    refused(wide.post(TEXT, body, prompt=[[5]] * 250), param="n")
    assert wide.post(CHAT, TALK, n=64, max_tokens=1).status_code == 200

"""Who gives up cancels what was submitted, and only what has not ended; what is counted, exactly:
tokens, requests by how they ended, an observation for each token and each request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tiny
from glassformer.serve.asgi.replies import RequestStats
from glassformer.serve.engine import Engine, QueueFull, Request
from glassformer.serve.engine.engine import Stats
from glassformer.serve.lanes import Lanes
from glassformer.serve.prometheus import Metrics
from glassformer.serve.served_models import Context, cancel, submit

from .conftest import Server

LONG = Request([1, 2], max_new=60, stop_tokens=())


def context_of(engine: Engine) -> Context:
    """A request of nobody to this engine."""
    http: Any = SimpleNamespace(state=SimpleNamespace(tally=RequestStats()))
    served: Any = SimpleNamespace(id="tiny", engine=engine)
    return Context(http, served, Metrics({}), Lanes(), 0, lambda size: None)


def test_what_is_given_up_is_cancelled():
    with Engine(tiny.model("llama")) as engine:
        handles = submit(engine, [LONG] * 20)
        cancel(handles)
        reasons = {handle.result().completions[0].finish_reason for handle in handles}
        assert "cancelled" in reasons
        cancel(handles)


def test_all_are_submitted_or_none():
    with Engine(tiny.model("llama"), max_queue=2, max_sequences=1) as engine:
        first = submit(engine, [LONG])
        with pytest.raises(QueueFull):
            for _ in range(50):
                submit(engine, [LONG] * 2)
        cancel(first)


@pytest.mark.parametrize("count", [1, 3])
def test_a_reader_that_stops_early_cancels(count):
    async def read_some():
        handles = submit(engine, [LONG] * count)
        events = context.events(handles)
        await anext(events)
        await events.aclose()
        last = {handle: event async for handle, event in handles[0].channel}
        assert {event.finish_reason for event in last.values()} == {"cancelled"}
        assert len(last) == count

    with Engine(tiny.model("llama")) as engine:
        context = context_of(engine)
        asyncio.run(read_some())
        assert b'finished_reason="abort"' in context.metrics.text()


COUNTED = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
)


def counted(server: Server) -> dict[str, float]:
    return {name: server.metric(name) for name in COUNTED}


def test_exact_counts(server):
    """Three requests: of two prompts and two choices each, of one that is scored only, and of a
    stream."""
    assert server.idle()
    before = counted(server)
    prompt = [5, 6, 7, 8]
    plain = {"max_tokens": 3, "ignore_eos": True, "seed": 1}
    assert (
        server.post("/v1/completions", plain, prompt=[prompt, prompt[:2]], n=2).status_code == 200
    )
    assert server.post("/v1/completions", prompt=prompt, max_tokens=0, echo=True).status_code == 200
    assert server.post("/v1/completions", plain, prompt=prompt, stream=True).status_code == 200
    after = counted(server)
    assert {name: after[name] - before[name] for name in COUNTED} == {
        "prompt_tokens_total": 4 + 2 + 4 + 4,
        "generation_tokens_total": 4 * 3 + 3,
        "request_success_total": 4,
        "time_to_first_token_seconds_count": 3,
        "inter_token_latency_seconds_count": 4 * 2 + 2,
        "e2e_request_latency_seconds_count": 4,
        "request_queue_time_seconds_count": 4,
    }


def test_blanks_and_translations_are_counted_too(server):
    """They go through the same queue: three passes to fill two blanks one after the other, two
    sources of two beams."""
    assert server.idle()
    before = counted(server)
    fill = {"model": "labels", "input": "the ___ sat on the ___", "top": 2, "order": "left"}
    assert server.post("/v1/fill", fill).status_code == 200
    body = server.json("/v1/translate", model="translator", input=["the cat", "a log"], beams=2)
    after = counted(server)
    assert after["request_success_total"] - before["request_success_total"] == 3 + 2
    written = sum(len(item["tokens"]) for group in body["data"] for item in group["best"])
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == written
    assert server.idle() and server.metric("kv_cache_usage_perc") == 0


def test_what_is_refused_is_not_counted_and_who_leaves_is(server):
    assert server.idle()
    before = counted(server)
    assert server.post("/v1/completions", prompt="").status_code == 400
    assert counted(server) == before
    long = {"prompt": "O", "max_tokens": 250, "stream": True, "ignore_eos": True}
    with (
        httpx.Client(base_url=server.url) as client,
        client.stream("POST", "/v1/completions", json=long) as output,
    ):
        next(output.iter_lines())
    until = time.monotonic() + 20
    while (
        time.monotonic() < until
        and counted(server)["request_success_total"] == before["request_success_total"]
    ):
        time.sleep(0.1)
    text = httpx.get(f"{server.url}/metrics").text
    assert 'glassformer:request_success_total{finished_reason="abort",model_name="tiny"}' in text


def test_the_names_are_vllms_and_the_gauges_are_shares(server):
    text = httpx.get(f"{server.url}/metrics").text
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", *COUNTED)
    names += (
        "num_preemptions_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
    )
    for name in names:
        assert f"glassformer:{name}{{" in text, name
    assert 0 <= server.metric("kv_cache_usage_perc") <= 1 and "_created" not in text


def test_each_number_stands_under_its_name():
    numbers = {
        "num_requests_running": "running",
        "num_requests_waiting": "waiting",
        "kv_cache_usage_perc": "used_share",
        "num_preemptions_total": "preempted",
        "spec_decode_num_draft_tokens_total": "drafted_tokens",
        "spec_decode_num_accepted_tokens_total": "accepted_tokens",
    }
    stats = Stats(*range(100, 100 + len(fields(Stats))))
    engine: Any = SimpleNamespace(stats=lambda: stats)
    text = Metrics({"tiny": engine}).text().decode()
    for name, number in numbers.items():
        line = f'glassformer:{name}{{model_name="tiny"}} {float(getattr(stats, number))}'
        assert line in text.splitlines(), name


def test_times_add_up(server):
    """Two answers' time to the last token is at least that to the first, and both are more than
    nothing."""
    names = ("time_to_first_token_seconds_sum", "e2e_request_latency_seconds_sum")
    before = [server.metric(name) for name in names]
    for _ in range(2):
        assert (
            server.post("/v1/completions", prompt="O", max_tokens=8, ignore_eos=True).status_code
            == 200
        )
    first, full = (server.metric(name) - was for name, was in zip(names, before, strict=True))
    assert 0 < first < full

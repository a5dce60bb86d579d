"""Who gives up cancels what was submitted, and only what has not ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import tiny
from glassformer.serve.engine import Engine, QueueFull, Request
from glassformer.serve.metrics import Metrics
from glassformer.serve.registry import Registry
from glassformer.serve.tracking import Context, RequestStats, cancel, submit

LONG = Request([1, 2], max_new=60, stop_tokens=())


def context_of(engine: Engine) -> Context:
    """A request of nobody to this engine."""
    http: Any = SimpleNamespace(state=SimpleNamespace(tally=RequestStats()))
    served: Any = SimpleNamespace(id="tiny", engine=engine)
    return Context(http, served, Metrics(Registry([])))


def test_what_is_given_up_is_cancelled() -> None:
    with Engine(tiny.model(tiny.DECODERS["llama"])) as engine:
        handles = submit(engine, [LONG] * 20)
        cancel(handles)
        reasons = {handle.result().completions[0].finish_reason for handle in handles}
        assert "cancelled" in reasons
        cancel(handles)


def test_all_are_submitted_or_none() -> None:
    with Engine(tiny.model(tiny.DECODERS["llama"]), max_queue=2, max_sequences=1) as engine:
        first = submit(engine, [LONG])
        with pytest.raises(QueueFull):
            for _ in range(50):
                submit(engine, [LONG] * 2)
        cancel(first)


@pytest.mark.parametrize("count", [1, 3])
def test_a_reader_that_stops_early_cancels(count: int) -> None:
    async def read_some() -> None:
        handles = submit(engine, [LONG] * count)
        events = context.merge_events(handles)
        await anext(events)
        await events.aclose()
        for handle in handles:
            assert [event async for event in handle][-1].finish_reason == "cancelled"

    with Engine(tiny.model(tiny.DECODERS["llama"])) as engine:
        context = context_of(engine)
        asyncio.run(read_some())
        assert b'finished_reason="abort"' in context.metrics.text()

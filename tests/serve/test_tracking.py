"""Who gives up cancels what was submitted, and only what has not ended."""

from __future__ import annotations

import asyncio

import pytest

import tiny
from glassformer.serve.engine import Engine, QueueFull, Request
from glassformer.serve.metrics import Metrics
from glassformer.serve.registry import Registry
from glassformer.serve.tracking import RequestStats, RequestTracker


class Served:
    """Stub of a served model for request tracking."""

    def __init__(self, engine: Engine) -> None:
        self.id, self.engine = "tiny", engine


def followers(engine: Engine) -> tuple[RequestTracker, Served]:
    registry, served = Registry([]), Served(engine)
    registry.entries["tiny"] = served  # type: ignore[assignment]
    return RequestTracker(registry, Metrics(registry)), served


LONG = Request([1, 2], max_new=60, stop_tokens=())


def test_what_is_dropped_is_cancelled_and_forgotten() -> None:
    with Engine(tiny.model(tiny.DECODERS["llama"])) as engine:
        actual, served = followers(engine)
        handles = actual.submit(served, [LONG] * 20)  # type: ignore[arg-type]
        assert {*actual.open} == {*handles}
        actual.drop(handles)
        reasons = {handle.result().completions[0].finish_reason for handle in handles}
        assert "cancelled" in reasons and not actual.open
        actual.drop(handles)


def test_all_are_submitted_or_none() -> None:
    with Engine(tiny.model(tiny.DECODERS["llama"]), max_queue=2, max_sequences=1) as engine:
        actual, served = followers(engine)
        first = actual.submit(served, [LONG])  # type: ignore[arg-type]
        with pytest.raises(QueueFull):
            for _ in range(50):
                actual.submit(served, [LONG] * 2)  # type: ignore[arg-type]
        actual.drop([*actual.open])
        assert not actual.open and first


def test_a_reader_that_stops_early_cancels() -> None:
    async def read_some() -> None:
        (handle,) = actual.submit(served, [LONG])  # type: ignore[arg-type]
        events = actual.events(handle, RequestStats())
        await anext(events)
        await events.aclose()
        assert not actual.open

    with Engine(tiny.model(tiny.DECODERS["llama"])) as engine:
        actual, served = followers(engine)
        asyncio.run(read_some())
        assert b'finished_reason="abort"' in actual.metrics.text()


def test_a_reader_of_several_that_stops_early_ends_quietly() -> None:
    async def read_some() -> None:
        events = actual.merge_events(actual.submit(served, [LONG] * 3), RequestStats())  # type: ignore[arg-type]
        await anext(events)
        await events.aclose()
        assert not actual.open

    with Engine(tiny.model(tiny.DECODERS["llama"])) as engine:
        actual, served = followers(engine)
        asyncio.run(read_some())

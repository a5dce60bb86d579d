"""Requests under way: id, key, log line and metrics of each, and its requests to the engine, which are
cancelled when the client disconnects.

Prometheus's metrics are named as vLLM's, with the prefix ``glassformer:``.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from .asgi.limits import MOST_HEADER_LINES, MOST_HEADERS
from .asgi.replies import (
    ClientDisconnected,
    HttpError,
    disconnected,
    error_response,
    log_line,
    until_disconnect,
)
from .asgi.security import check_key
from .engine import Encode, Engine, EngineClosed, Event, Request, RequestHandle
from .registry import Registry, ServedModel

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BATCH_SIZE = 32  # texts of one request that are encoded side by side
ONE_THREAD = CapacityLimiter(1)
ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = ("/health",)
PREFIX = "glassformer:"
SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
STATS = {
    "num_requests_running": (GaugeMetricFamily, "running", "Requests that are being computed."),
    "num_requests_waiting": (GaugeMetricFamily, "waiting", "Requests that wait for their turn."),
    "kv_cache_usage_perc": (
        GaugeMetricFamily,
        "used_share",
        "Share of the memory of keys and values in use, 0 to 1.",
    ),
    "num_preemptions": (
        CounterMetricFamily,
        "preempted",
        "Continuations that gave their pages back for others, to be read again.",
    ),
    "spec_decode_num_draft_tokens": (
        CounterMetricFamily,
        "drafted_tokens",
        "Tokens that were guessed ahead.",
    ),
    "spec_decode_num_accepted_tokens": (
        CounterMetricFamily,
        "accepted_tokens",
        "Guessed tokens that were right.",
    ),
}
"""Read from the engines: the kind of metric and the field of their Stats, by name."""
COUNTERS = {
    "prompt_tokens": "Tokens of prompts that were answered.",
    "generation_tokens": "Tokens that were generated.",
    "request_success": "Requests that were answered to their end, by how they ended.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "From the request to its first token.",
    "inter_token_latency_seconds": "From one token to the next of the same choice.",
    "e2e_request_latency_seconds": "From the request to its end.",
    "request_queue_time_seconds": "From the request to the step in which it is first computed.",
}


@dataclass(frozen=True)
class EngineStats(Collector):
    """Gauges and totals of every engine, read at each scrape."""

    registry: Registry

    def collect(self) -> Iterable[Metric]:
        """Yields one sample per model and metric."""
        stats = {id: served.engine.stats() for id, served in self.registry.entries.items()}
        for name, (family, number, help_text) in STATS.items():
            metric = family(PREFIX + name, help_text, labels=["model_name"])
            for id, values in stats.items():
                metric.add_metric([id], getattr(values, number))
            yield metric


class Metrics:
    """Counters and histograms of one server; ``text`` is what Prometheus reads."""

    def __init__(self, registry: Registry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.collectors = CollectorRegistry()
        self.collectors.register(EngineStats(registry))
        named = {name: ["model_name"] for name in (*COUNTERS, *HISTOGRAMS)}
        named["request_success"] = ["model_name", "finished_reason"]
        self.counters = {
            name: Counter(PREFIX + name, help_text, named[name], registry=self.collectors)
            for name, help_text in COUNTERS.items()
        }
        self.histograms = {
            name: Histogram(
                PREFIX + name, help_text, named[name], registry=self.collectors, buckets=SECONDS
            )
            for name, help_text in HISTOGRAMS.items()
        }
        for id in registry.entries:  # a counter that is there from the start shows its first step
            for name in ("prompt_tokens", "generation_tokens"):
                self.counters[name].labels(id)
            for name in HISTOGRAMS:
                self.histograms[name].labels(id)
        self.load = 0  # answers under way

    def count(self, name: str, model: str, number: float = 1, *more: str) -> None:
        """Add to a counter."""
        self.counters[name].labels(model, *more).inc(number)

    def observe(self, name: str, model: str, seconds: float) -> None:
        """Add to a histogram."""
        self.histograms[name].labels(model).observe(max(seconds, 0.0))

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.collectors)


@dataclass
class RequestStats:
    """Token counts and finish reasons of one HTTP request, for its log line."""

    model: str | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finish: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RequestMiddleware:
    """The first to see a request and the last to see its answer: id, key, bounds, log.

    ``keys`` are those that let a client in, None for no need of one.
    """

    app: ASGIApp
    keys: Sequence[str] | None
    metrics: Metrics
    log: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        headers = Headers(scope=scope)
        tally = RequestStats()
        client_id = headers.get("x-request-id", "")
        id = client_id if ID.fullmatch(client_id) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {}).update(tally=tally, id=id)
        status = 499  # until an answer begins: the client left
        started = complete = False

        async def sending(message: Message) -> None:
            nonlocal status, started, complete
            if message["type"] == "http.response.start":
                started = True
                status = message["status"]
                MutableHeaders(scope=message).append("x-request-id", id)
            else:
                complete = not message.get("more_body", False)
            await send(message)

        self.metrics.load += 1
        try:
            self._check(scope, headers)
            await self.app(scope, receive, sending)
        except ClientDisconnected:
            status = 499
        except asyncio.CancelledError:
            status = 503
            raise
        except Exception as error:
            if not started:
                await error_response(error, scope)(scope, receive, sending)
            elif (
                not complete
            ):  # Starlette raises again what it has answered; the rest ends the connection
                raise
        finally:
            self.metrics.load -= 1
            if self.log:
                write_line(scope, id, status, time.monotonic() - start, tally)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises HttpError 431 for too many headers, 401 without a valid API key; the key's number
        identifies the client."""
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size > MOST_HEADERS or len(headers.raw) > MOST_HEADER_LINES:
            message = (
                f"A request has {MOST_HEADER_LINES} headers and {MOST_HEADERS >> 10} KiB of "
                "them at most; send less."
            )
            raise HttpError(431, message, headers={"connection": "close"})
        if self.keys is None or scope["path"] in OPEN_PATHS:
            return
        scope["state"]["client"] = f"key {check_key(headers, self.keys, 'Bearer')}"


def write_line(scope: Scope, id: str, status: int, seconds: float, tally: RequestStats) -> None:
    """Writes the log line of a request: client, path, status, time and token counts, never its
    content."""
    line = {
        "id": id,
        "client": (scope.get("client") or ("", 0))[0],
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "ms": round(1000 * seconds, 1),
    }
    log_line(line if tally.model is None else line | vars(tally))


def submit(engine: Engine, requests: Sequence[Request | Encode]) -> list[RequestHandle]:
    """Submits all requests or none. Raises as the engine does."""
    handles = list[RequestHandle]()
    try:
        engine.check_size(requests)
        for request in requests:
            handles.append(engine.submit(request))
    except BaseException:
        cancel(handles)
        raise
    return handles


def cancel(handles: Iterable[RequestHandle]) -> None:
    for handle in handles:
        handle.cancel()


@dataclass(frozen=True)
class Context:
    """One request to the API: its connection, the model that answers, and the server's metrics.

    Its engine requests are cancelled when the client disconnects.
    """

    http: HttpRequest
    served: ServedModel
    metrics: Metrics

    @property
    def client(self) -> str:
        """Client id for fair scheduling: the API key's number, or the IP address."""
        address = self.http.client.host if self.http.client else ""
        return getattr(self.http.state, "client", "") or address

    @property
    def tally(self) -> RequestStats:
        return self.http.state.tally  # type: ignore[no-any-return]

    def require(self, able: bool, ability: str) -> None:
        """Refuses what the model cannot do."""
        if not able:
            names = ", ".join(self.served.abilities()) or "nothing else"
            message = f'"{self.served.id}" does not {ability}; it answers {names}.'
            raise HttpError(400, message, "model")

    async def until_disconnect(self, work: Awaitable[T]) -> T:
        return await until_disconnect(disconnected(self.http), work)

    async def run_exclusively(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs ``work`` in a thread, one call at a time over the whole server."""
        return await self.until_disconnect(
            to_thread.run_sync(work, *args, limiter=ONE_THREAD, abandon_on_cancel=True)
        )

    async def submit(self, requests: Sequence[Request]) -> list[RequestHandle]:
        """Submits all requests or none, in a thread where it takes long: many continuations, or
        edits that need a pass over another text."""
        engine = self.served.engine
        is_large = sum(request.size for request in requests) > BATCH_SIZE
        if not is_large and not any(request.edits for request in requests):
            return submit(engine, requests)
        task = asyncio.ensure_future(to_thread.run_sync(submit, engine, requests))
        try:
            return await self.until_disconnect(asyncio.shield(task))
        except BaseException:
            task.add_done_callback(lambda done: cancel(() if done.exception() else done.result()))
            raise

    async def events(self, handle: RequestHandle) -> AsyncGenerator[Event]:
        """Yields the events of a request and raises its error. Cancels it if the consumer stops
        early."""
        id = self.served.id
        metrics = self.metrics
        tally = self.tally
        start = time.monotonic()
        last: dict[int, float] = {}
        queued = True
        tally.model = id
        tally.prompt_tokens += len(handle.request.tokens)
        try:
            async for event in handle:
                now = time.monotonic()
                if event.error is not None:
                    raise event.error
                if event.finish_reason == "cancelled":
                    raise EngineClosed("The server ends; try again later.")
                if queued:
                    queued = False
                    waited = (handle.start_time or now) - start
                    metrics.observe("request_queue_time_seconds", id, waited)
                if event.token is not None:
                    tally.generated_tokens += 1
                    if event.index in last:
                        seconds = now - last[event.index]
                        metrics.observe("inter_token_latency_seconds", id, seconds)
                    elif not last:
                        metrics.observe("time_to_first_token_seconds", id, now - start)
                    last[event.index] = now
                if event.finish_reason is not None:
                    tally.finish.append(event.finish_reason)
                if event.usage is not None:
                    metrics.observe("e2e_request_latency_seconds", id, now - start)
                    metrics.count("prompt_tokens", id, event.usage.prompt)
                    metrics.count("generation_tokens", id, event.usage.generated)
                    metrics.count("request_success", id, 1, event.finish_reason or "stop")
                yield event
        finally:
            if not handle.exhausted:
                metrics.count("request_success", id, 1, "abort")
                handle.cancel()

    async def merge_events(
        self, handles: Sequence[RequestHandle]
    ) -> AsyncGenerator[tuple[int, Event]]:
        """Yields events of several requests in order of arrival, each with the index of its handle;
        a slow consumer blocks them. If one fails, all are cancelled."""
        if len(handles) == 1:
            # given up at once, not when it is collected
            async with aclosing(self.events(handles[0])) as events:
                async for event in events:
                    yield 0, event
            return
        queue: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue(64)

        async def feed(number: int, handle: RequestHandle) -> None:
            try:
                async for event in self.events(handle):
                    await queue.put((number, event))
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        tasks = [asyncio.ensure_future(feed(*item)) for item in enumerate(handles)]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            cancel(handles)

    async def results(self, handles: Sequence[RequestHandle]) -> list[list[Event]]:
        """Events of each request. Raises ClientDisconnected."""
        results = [list[Event]() for _ in handles]

        async def collect() -> list[list[Event]]:
            async with aclosing(self.merge_events(handles)) as merged:
                async for number, event in merged:
                    results[number].append(event)
            return results

        return await self.until_disconnect(collect())

    async def run_batches(self, requests: Sequence[Request | Encode]) -> list[RequestHandle]:
        """Runs requests to completion in batches that fit the queue. Raises ClientDisconnected."""
        finished = list[RequestHandle]()
        engine = self.served.engine
        batch_size = max(1, min(BATCH_SIZE, engine.max_queue // 2))
        for offset in range(0, len(requests), batch_size):
            handles = submit(engine, requests[offset : offset + batch_size])
            await self.results(handles)
            finished += handles
        return finished

    async def outputs(self, requests: Sequence[Encode]) -> list[Tensor]:
        """Outputs of encoder requests, in fp32."""
        handles = await self.run_batches(requests)
        return [handle.output.float().cpu() for handle in handles if handle.output is not None]

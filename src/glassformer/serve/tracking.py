"""Requests in flight: their engine requests, events and metrics, cancelled when the client
disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as HttpRequest
from torch import Tensor

from .asgi.replies import HttpError, until_disconnect
from .engine import Encode, Engine, EngineClosed, Event, Request, RequestHandle
from .metrics import Metrics
from .registry import ServedModel

T = TypeVar("T")
BATCH_SIZE = 32  # texts of one request that are encoded side by side
ONE_THREAD = CapacityLimiter(1)


@dataclass
class RequestStats:
    """Token counts and finish reasons of one HTTP request, for its log line."""

    model: str | None = None
    prompt: int = 0
    generated: int = 0
    finish: list[str] = field(default_factory=list)


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
        return await until_disconnect(self.http, work)

    async def run_exclusively(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread, one call at a time over the whole server."""
        running = to_thread.run_sync(work, limiter=ONE_THREAD, abandon_on_cancel=True)
        return await self.until_disconnect(running)

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
        id, metrics, tally = self.served.id, self.metrics, self.tally
        start = time.monotonic()
        last: dict[int, float] = {}
        queued = True
        tally.model, tally.prompt = id, tally.prompt + len(handle.request.tokens)
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
                    tally.generated += 1
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
        finished, engine = list[RequestHandle](), self.served.engine
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

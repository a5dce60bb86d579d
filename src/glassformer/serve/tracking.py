"""Requests in flight: their engine requests, events and metrics, cancelled when the client
disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as HttpRequest
from torch import Tensor

from .asgi.replies import refuse, until_disconnect
from .engine import Encode, EngineClosed, Event, Request, RequestHandle, Usage
from .metrics import Metrics
from .registry import Registry, ServedModel

T = TypeVar("T")
POLL_SECONDS = 0.5  # seconds between looks at the engines
BATCH_SIZE = 32  # texts of one request that are encoded side by side
ENGINE_ENDED = "The model's engine has ended; try again later."
ONE_THREAD = CapacityLimiter(1)


@dataclass
class RequestStats:
    """Token counts and finish reasons of one HTTP request, for its log line."""

    model: str | None = None
    prompt: int = 0
    generated: int = 0
    finish: list[str] = field(default_factory=list)


class RequestTracker:
    """Submits requests to engines and tracks them; requests of an engine that dies fail at once."""

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self.registry, self.metrics = registry, metrics
        self.open: dict[RequestHandle, ServedModel] = {}

    def submit(
        self, served: ServedModel, requests: Sequence[Request | Encode]
    ) -> list[RequestHandle]:
        """Submits all requests or none. Raises as the engine does, and HttpError for more than the
        queue can hold."""
        handles, max_queue = list[RequestHandle](), served.engine.max_queue
        size = sum(getattr(request, "n", 1) for request in requests)
        message = (
            f"A request of {size:,} continuations never fits in the queue of {max_queue:,}; send "
            "fewer at a time."
        )
        refuse(size > max_queue, message, "prompt")
        try:
            if not served.engine.alive:
                raise EngineClosed(ENGINE_ENDED)
            for request in requests:
                handles.append(served.engine.submit(request))
                self.open[handles[-1]] = served
        except BaseException:
            self.drop(handles)
            raise
        return handles

    async def submit_async(
        self, served: ServedModel, requests: Sequence[Request | Encode]
    ) -> list[RequestHandle]:
        """Runs ``submit``, in a thread where it takes long: many continuations, or edits that need
        a pass over another text."""
        is_large = sum(getattr(request, "n", 1) for request in requests) > BATCH_SIZE
        if not is_large and not any(getattr(request, "edits", ()) for request in requests):
            return self.submit(served, requests)
        task = asyncio.ensure_future(to_thread.run_sync(self.submit, served, requests))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(
                lambda done: self.drop(() if done.exception() else done.result())
            )
            raise

    def drop(self, handles: Sequence[RequestHandle]) -> None:
        """Cancels the requests that are still open."""
        for handle in handles:
            if self.open.pop(handle, None) is not None:
                handle.cancel()

    async def events(self, handle: RequestHandle, tally: RequestStats) -> AsyncGenerator[Event]:
        """Yields the events of a request and raises its error. Cancels it if the consumer stops
        early."""
        served = self.open[handle]
        start = time.monotonic()
        last: dict[int, float] = {}
        queued, metrics = True, self.metrics
        tally.model, tally.prompt = served.id, tally.prompt + len(handle.request.tokens)
        try:
            async for event in handle:
                now = time.monotonic()
                if event.usage is not None:
                    self.open.pop(handle, None)
                if event.error is not None:
                    raise event.error
                if event.finish_reason == "cancelled":
                    raise EngineClosed("The server ends; try again later.")
                if queued:
                    queued = False
                    metrics.observe(
                        "request_queue_time_seconds", served.id, (handle.start_time or now) - start
                    )
                if event.token is not None:
                    tally.generated += 1
                    if event.index in last:
                        seconds = now - last[event.index]
                        metrics.observe("inter_token_latency_seconds", served.id, seconds)
                    elif not last:
                        metrics.observe("time_to_first_token_seconds", served.id, now - start)
                    last[event.index] = now
                if event.finish_reason is not None:
                    tally.finish.append(event.finish_reason)
                if event.usage is not None:
                    metrics.observe("e2e_request_latency_seconds", served.id, now - start)
                    metrics.count("prompt_tokens", served.id, event.usage.prompt)
                    metrics.count("generation_tokens", served.id, event.usage.generated)
                    metrics.count("request_success", served.id, 1, event.finish_reason or "stop")
                yield event
        finally:
            if handle in self.open:
                metrics.count("request_success", served.id, 1, "abort")
                self.drop([handle])

    async def results(
        self, handles: Sequence[RequestHandle], tally: RequestStats
    ) -> list[list[Event]]:
        """Collects the events of several requests; if one fails, all are cancelled."""

        async def collect(handle: RequestHandle) -> list[Event]:
            return [event async for event in self.events(handle, tally)]

        try:
            return await asyncio.gather(*map(collect, handles))
        finally:
            self.drop(handles)

    async def merge_events(
        self, handles: Sequence[RequestHandle], tally: RequestStats
    ) -> AsyncGenerator[tuple[int, Event]]:
        """Yields events of several requests in order of arrival, each with the index of its handle;
        a slow consumer blocks them."""
        if len(handles) == 1:
            # given up at once, not when it is collected
            async with aclosing(self.events(handles[0], tally)) as events:
                async for event in events:
                    yield 0, event
            return
        queue: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue(64)

        async def feed(number: int, handle: RequestHandle) -> None:
            try:
                async for event in self.events(handle, tally):
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
            self.drop(handles)

    async def watch(self) -> None:
        """Polls the engines while the server runs and fails the open requests of an engine that has
        died."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for handle, served in [*self.open.items()]:
                if not served.engine.alive:
                    error = EngineClosed(ENGINE_ENDED)
                    usage = Usage(len(handle.request.tokens), 0, 0)
                    handle.put(Event(0, finish_reason="error", error=error, usage=usage))
                    self.open.pop(handle, None)


@dataclass(frozen=True)
class Context:
    """One request to the API: its connection, the model that answers, and the tracker of its engine
    requests."""

    http: HttpRequest
    served: ServedModel
    tracker: RequestTracker

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
        names = ", ".join(self.served.abilities()) or "nothing else"
        refuse(not able, f'"{self.served.id}" does not {ability}; it answers {names}.', "model")

    async def until_disconnect(self, work: Awaitable[T]) -> T:
        return await until_disconnect(self.http, work)

    async def run_exclusively(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread, one call at a time over the whole server."""
        running = to_thread.run_sync(work, limiter=ONE_THREAD, abandon_on_cancel=True)
        return await self.until_disconnect(running)

    async def submit(self, requests: Sequence[Request]) -> list[RequestHandle]:
        return await self.until_disconnect(self.tracker.submit_async(self.served, requests))

    async def results(self, handles: Sequence[RequestHandle]) -> list[list[Event]]:
        """Events of each request. Raises ClientDisconnected."""
        return await self.until_disconnect(self.tracker.results(handles, self.tally))

    async def run_batches(self, requests: Sequence[Request | Encode]) -> list[RequestHandle]:
        """Runs requests to completion in batches that fit the queue. Raises ClientDisconnected."""
        finished, max_queue = list[RequestHandle](), self.served.engine.max_queue
        batch_size = max(1, min(BATCH_SIZE, max_queue // 2))
        for offset in range(0, len(requests), batch_size):
            batch = requests[offset : offset + batch_size]
            handles = self.tracker.submit(self.served, batch)
            await self.results(handles)
            finished += handles
        return finished

    async def outputs(self, requests: Sequence[Encode]) -> list[Tensor]:
        """Outputs of encoder requests, in fp32."""
        handles = await self.run_batches(requests)
        return [handle.output.float().cpu() for handle in handles if handle.output is not None]

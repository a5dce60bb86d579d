"""A request as the server follows it through the engine: its events, its figures, and its end when
nobody waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as HttpRequest
from torch import Tensor

from ..engine import Encode, EngineClosed, Event, Handle, Request, Usage
from .errors import refuse
from .metrics import Metrics
from .registry import Registry, ServedModel

T = TypeVar("T")
WATCHED = 0.5  # seconds between looks at the engines
ATONCE = 32  # texts of one request that are encoded side by side
TURN = CapacityLimiter(1)


class Gone(Exception):
    """Nobody waits for the answer any more."""


@dataclass
class Tally:
    """What one HTTP request took, for its line in the log."""

    model: str | None = None
    prompt: int = 0
    generated: int = 0
    finish: list[str] = field(default_factory=list)


class Followers:
    """Submits requests and follows them; what is open when an engine dies fails at once."""

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self.registry, self.metrics = registry, metrics
        self.open: dict[Handle, ServedModel] = {}

    def submit(self, served: ServedModel, requests: Sequence[Request | Encode]) -> list[Handle]:
        """All of them or none. Raises as the engine does, and ApiError for more than can ever
        wait."""
        handles, most = list[Handle](), served.engine.max_queue
        size = sum(getattr(one, "n", 1) for one in requests)
        said = (
            f"A request of {size:,} continuations never fits in the queue of {most:,}; send "
            "fewer at a time."
        )
        refuse(size > most, said, "prompt")
        try:
            if not served.engine.alive:
                raise EngineClosed("The model's engine has ended; try again later.")
            for one in requests:
                handles.append(served.engine.submit(one))
                self.open[handles[-1]] = served
        except BaseException:
            self.drop(handles)
            raise
        return handles

    async def submitted(
        self, served: ServedModel, requests: Sequence[Request | Encode]
    ) -> list[Handle]:
        """``submit``; in a thread where it takes long: many continuations, and edits that read
        another text first."""
        several = sum(getattr(one, "n", 1) for one in requests) > ATONCE
        if not several and not any(getattr(one, "edits", ()) for one in requests):
            return self.submit(served, requests)
        doing = asyncio.ensure_future(to_thread.run_sync(self.submit, served, requests))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            doing.add_done_callback(
                lambda done: self.drop(() if done.exception() else done.result())
            )
            raise

    def drop(self, handles: Sequence[Handle]) -> None:
        """Nobody wants these any more; those that have ended are left alone."""
        for handle in handles:
            if self.open.pop(handle, None) is not None:
                handle.cancel()

    async def events(self, handle: Handle, tally: Tally) -> AsyncGenerator[Event]:
        """Its events; raises what made it fail. Cancels it where the reader stops early."""
        served = self.open[handle]
        begun = time.monotonic()
        last: dict[int, float] = {}
        waits, metrics = True, self.metrics
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
                if waits:
                    waits = False
                    metrics.observe(
                        "request_queue_time_seconds", served.id, (handle.began or now) - begun
                    )
                if event.token is not None:
                    tally.generated += 1
                    name = (
                        "inter_token_latency_seconds"
                        if event.index in last
                        else "time_to_first_token_seconds"
                    )
                    if event.index in last or not last:
                        metrics.observe(name, served.id, now - last.get(event.index, begun))
                    last[event.index] = now
                if event.finish_reason is not None:
                    tally.finish.append(event.finish_reason)
                if event.usage is not None:
                    metrics.observe("e2e_request_latency_seconds", served.id, now - begun)
                    metrics.count("prompt_tokens", served.id, event.usage.prompt)
                    metrics.count("generation_tokens", served.id, event.usage.generated)
                    metrics.count("request_success", served.id, 1, event.finish_reason or "stop")
                yield event
        finally:
            if handle in self.open:
                metrics.count("request_success", served.id, 1, "abort")
                self.drop([handle])

    async def whole(self, handle: Handle, tally: Tally) -> list[Event]:
        """All its events."""
        return [event async for event in self.events(handle, tally)]

    async def results(self, handles: Sequence[Handle], tally: Tally) -> list[list[Event]]:
        """All events of several; where one fails, the others end too."""
        try:
            return await asyncio.gather(*(self.whole(handle, tally) for handle in handles))
        finally:
            self.drop(handles)

    async def answered(
        self, http: HttpRequest, served: ServedModel, made: Sequence[Request | Encode]
    ) -> list[Handle]:
        """All of these to their ends, a part of the queue at a time; raises Gone where the client
        leaves."""
        found, some = list[Handle](), max(1, min(ATONCE, served.engine.max_queue // 2))
        for begin in range(0, len(made), some):
            found += (handles := self.submit(served, made[begin : begin + some]))
            await unless_gone(http, self.results(handles, http.state.tally))
        return found

    async def outputs(
        self, http: HttpRequest, served: ServedModel, made: Sequence[Encode]
    ) -> list[Tensor]:
        """What the engine makes of whole texts, in fp32."""
        handles = await self.answered(http, served, made)
        return [handle.output.float().cpu() for handle in handles if handle.output is not None]

    async def merged(
        self, handles: Sequence[Handle], tally: Tally
    ) -> AsyncGenerator[tuple[int, Event]]:
        """The events of several as they come, each with its handle's number; a slow reader holds
        them back."""
        if len(handles) == 1:
            # given up at once, not when it is collected
            async with aclosing(self.events(handles[0], tally)) as events:
                async for event in events:
                    yield 0, event
            return
        queue: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue(64)

        async def feed(number: int, handle: Handle) -> None:
            try:
                async for event in self.events(handle, tally):
                    await queue.put((number, event))
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        tasks = [asyncio.ensure_future(feed(*one)) for one in enumerate(handles)]
        try:
            left = len(tasks)
            while left:
                made = await queue.get()
                if isinstance(made, BaseException):
                    raise made
                if made is None:
                    left -= 1
                else:
                    yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.drop(handles)

    async def watch(self) -> None:
        """For as long as the server runs: where an engine's thread has ended, whoever waits for it
        is told."""
        while True:
            await asyncio.sleep(WATCHED)
            for handle, served in [*self.open.items()]:
                if not served.engine.alive:
                    error = EngineClosed("The model's engine has ended; try again later.")
                    usage = Usage(len(handle.request.tokens), 0, 0)
                    handle.put(Event(0, finish_reason="error", error=error, usage=usage))
                    self.open.pop(handle, None)


async def disconnected(http: HttpRequest) -> None:
    """Return when the client has gone; its request was read to the end before."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(http: HttpRequest, work: Awaitable[T]) -> T:
    """What ``work`` gives; raises Gone, and ends it, where the client leaves before."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(http))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Gone
        return doing.result()
    finally:
        for task in (doing, leaving):
            await ended(task)


async def alone(work: Callable[[], T]) -> T:
    """What ``work`` gives, in a thread, one at a time."""
    return await to_thread.run_sync(work, limiter=TURN, abandon_on_cancel=True)


def client_of(http: HttpRequest) -> str:
    """Whom the engine is fair to: a key, and where none is needed an address."""
    return getattr(http.state, "client", "") or (http.client.host if http.client else "")


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has cleaned up after itself."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task

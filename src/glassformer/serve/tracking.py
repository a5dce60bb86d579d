"""A request of the API from its first byte to its answer's last: id, key, log line and metrics; its body read,
its answer written; its requests to the engine, which are cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from .asgi.limits import MOST_HEADER_LINES, MOST_HEADERS
from .asgi.replies import (
    ClientDisconnected,
    HttpError,
    disconnected,
    encode_json,
    error_response,
    from_json,
    json_response,
    log_line,
    read_body,
    until_disconnect,
)
from .asgi.security import check_key
from .asgi.validation import validation_error
from .engine import Encode, Engine, EngineClosed, Event, Request, RequestHandle
from .metrics import Metrics
from .registry import Registry, ServedModel

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BATCH_SIZE = 32  # texts of one request that are encoded side by side
ONE_THREAD = CapacityLimiter(1)
ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = ("/health",)


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
            raise HttpError(431, message)
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

    def require(self, ability: str, activity: str) -> None:
        """Refuses what the model cannot do."""
        if ability not in self.served.abilities:
            names = ", ".join(self.served.abilities) or "nothing else"
            message = f'"{self.served.id}" does not {activity}; it answers {names}.'
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
                    waited = max(0.0, (handle.start_time or now) - start)
                    metrics.queue_time.labels(id).observe(waited)
                if event.token is not None:
                    tally.generated_tokens += 1
                    if event.index in last:
                        metrics.inter_token.labels(id).observe(now - last[event.index])
                    elif not last:
                        metrics.first_token.labels(id).observe(now - start)
                    last[event.index] = now
                if event.finish_reason is not None:
                    tally.finish.append(event.finish_reason)
                if event.usage is not None:
                    metrics.full_time.labels(id).observe(now - start)
                    metrics.prompt_tokens.labels(id).inc(event.usage.prompt)
                    metrics.generation_tokens.labels(id).inc(event.usage.generated)
                    metrics.request_success.labels(id, event.finish_reason or "stop").inc()
                yield event
        finally:
            if not handle.exhausted:
                metrics.request_success.labels(id, "abort").inc()
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


def parse_body(body: type[BaseModel], content: bytes) -> Any:
    """Raises HttpError for invalid JSON and invalid fields."""
    try:
        return body.model_validate(from_json(content))
    except ValidationError as error:
        raise validation_error(error) from None


def endpoint(
    handler: Callable[[Context, Any], Awaitable[Any]],
    body: type[BaseModel],
    registry: Registry,
    metrics: Metrics,
) -> Callable[[HttpRequest], Awaitable[Response]]:
    """Starlette endpoint of what is computed from a JSON body.

    Bodies and answers are read and written in threads: megabytes of JSON of one client never block
    the streams of others.
    """

    async def answer(request: HttpRequest) -> Response:
        content = await read_body(request)
        fields = await to_thread.run_sync(parse_body, body, content)
        value = await handler(Context(request, registry[fields.model], metrics), fields)
        if isinstance(value, Response):
            return value
        return json_response(await to_thread.run_sync(encode_json, value))

    return answer

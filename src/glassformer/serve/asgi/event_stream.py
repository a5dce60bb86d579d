"""Server-sent events: one as bytes, and a stream of them that ends when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from .replies import (
    WRITE_CHUNK,
    ClientDisconnected,
    CountedResponse,
    disconnected,
    http_error,
    request_id,
    to_json,
    until_disconnect,
)


def format_event(data: Any, name: str | None = None, id: str | None = None) -> bytes:
    """Formats one server-sent event."""
    name_line = "" if name is None else f"event: {name}\n"
    id_line = "" if id is None else f"id: {id}\n"
    return f"{id_line}{name_line}data: {to_json(data)}\n\n".encode("utf-8", "replace")


def never(data: bytes) -> bool:
    """Writes nothing."""
    return False


class EventStream(CountedResponse):
    """Server-sent events after ``first``, closed by ``end``.

    The stream stops when the client disconnects. An exception on the way becomes an event with an
    ``error``. Once it has begun, ``write_chunk`` writes one more event from any thread, where it can.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        end: bytes = b"",
        first: bytes = b"",
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.end = end
        self.first = first
        self.write_chunk: Callable[[bytes], bool] = never

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(disconnected(Request(scope, receive)))
        id = request_id(scope)
        self.write_chunk = scope.get("state", {}).get(WRITE_CHUNK, never)
        try:
            await until_disconnect(leaving, self._send(send, leaving, id))
        except ClientDisconnected:
            if id is not None:  # the log of the API says who left
                raise

    async def _send(self, send: Send, leaving: asyncio.Future[None], id: str | None) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            if not more or not self.write_chunk(data):
                await send({"type": "http.response.body", "body": data, "more_body": more})

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        try:
            if self.first:
                await write(self.first)
            async for event in self.events:
                await asyncio.sleep(0)  # others are served between two that are there already
                await write(event)
        except (ClientDisconnected, asyncio.CancelledError):
            raise
        except Exception as error:
            await write(
                format_event(http_error(error, id).body(id), "error" if id is None else None)
            )
        finally:
            await self.events.aclose()
        # To a closed connection uvicorn writes nothing and does not wait: let the news of it come
        # first.
        await asyncio.sleep(0)
        if leaving.done():
            raise ClientDisconnected
        await write(self.end, more=False)

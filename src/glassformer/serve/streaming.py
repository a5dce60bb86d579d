"""Server-sent events as OpenAI's clients read them: ``data: {json}``, an empty line, at the end
``data: [DONE]``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import api_error
from .following import ClientDisconnected, cancel_and_wait, disconnected
from .logprobs import as_json

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(Response):
    """A stream of JSON objects.

    It ends when the reader leaves. What fails on the way is told as an event with an ``error``.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[Mapping[str, Any]]) -> None:
        super().__init__(None, 200, HEADERS)
        del self.headers["content-length"]
        self.chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        disconnect = asyncio.ensure_future(disconnected(HttpRequest(scope, receive)))
        sending = asyncio.ensure_future(self._send(send, disconnect, scope["state"]["id"]))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientDisconnected
            sending.result()
        finally:
            await cancel_and_wait(sending)
            await cancel_and_wait(disconnect)

    async def _send(self, send: Send, leaving: asyncio.Future[None], id: str) -> None:
        async def write(data: str, more: bool = True) -> None:
            await send(
                {
                    "type": "http.response.body",
                    "body": data.encode("utf-8", "replace"),
                    "more_body": more,
                }
            )

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        try:
            async for chunk in self.chunks:
                await write(f"data: {as_json(chunk)}\n\n")
        except (ClientDisconnected, asyncio.CancelledError):
            raise
        except Exception as error:
            await write(f"data: {as_json(api_error(error, id).body(id))}\n\n")
        finally:
            await self.chunks.aclose()
        # To a closed connection uvicorn writes nothing and does not wait: let the news of it come
        # first.
        await asyncio.sleep(0)
        if leaving.done():
            raise ClientDisconnected
        await write("data: [DONE]\n\n", more=False)


async def start_stream(
    chunks: AsyncGenerator[Mapping[str, Any]],
) -> AsyncGenerator[Mapping[str, Any]]:
    """Waits for the first chunk, so that an early error still gets an HTTP status."""
    first = await anext(chunks)

    async def chunks_from_first() -> AsyncGenerator[Mapping[str, Any]]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    return chunks_from_first()

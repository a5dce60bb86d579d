"""Request and response helpers: cancellable work in threads, JSON, server-sent events, error
responses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from .. import files
from ..errors import UserError, note
from . import wire
from .models import CancelCheck, NotFound

T = TypeVar("T")
MAX_BODY = 8 << 20


class ClientDisconnected(Exception):
    """Raised when the browser has disconnected."""


def check_connected(gone: threading.Event) -> None:
    if gone.is_set():
        raise ClientDisconnected


async def run_in_thread(request: Request, task: Callable[[CancelCheck], T]) -> T:
    """Runs ``task(check)`` in a thread; ``check`` raises ClientDisconnected when the browser
    disconnects."""
    gone = threading.Event()
    future = asyncio.ensure_future(to_thread.run_sync(task, partial(check_connected, gone)))
    try:
        while not (await asyncio.wait({future}, timeout=0.1))[0]:
            if await request.is_disconnected():
                gone.set()
        return future.result()
    finally:
        gone.set()


async def stream_events(
    first: Any, steps: Iterator[Any], gone: threading.Event
) -> AsyncIterator[bytes]:
    """Server-sent events of a generator's items; ends at the next item when the reader
    disconnects."""
    try:
        yield format_event(*first)
        while (step := await to_thread.run_sync(next, steps, None)) is not None:
            yield format_event(*step)
    except UserError as error:
        yield format_event("error", {"error": str(error)})
    except ClientDisconnected:
        pass
    except Exception as error:
        yield format_event("error", {"error": _error_message(error)})
    finally:
        gone.set()


def format_event(name: str, data: Any, id: str | None = None) -> bytes:
    """Formats one server-sent event; ``token`` and ``message`` get no event name."""
    name_line = "" if name in ("token", "message") else f"event: {name}\n"
    id_line = "" if id is None else f"id: {id}\n"
    return f"{id_line}{name_line}data: {to_json(data)}\n\n".encode()


def event_response(stream: AsyncIterator[bytes]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, 200, headers, "text/event-stream")


async def read_body(request: Request) -> dict[str, Any]:
    """Reads the body as a JSON object, up to MAX_BODY bytes."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY:
            raise wire.ResponseTooLarge(
                f"A request has {MAX_BODY >> 20} MiB at most, and this is more; shorten the text.",
                "",
            )
    return files.json_object(data.decode("utf-8", "replace"), "The request", "send an object")


def json_response(value: Any, status: int = 200) -> Response:
    """JSON response that is never cached."""
    return Response(to_json(value), status, {"cache-control": "no-store"}, "application/json")


def to_json(value: Any) -> str:
    """Encodes JSON; numbers that are not finite become strings."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(
            _finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return files.json_number(value) if isinstance(value, float) else value


def etag_response(request: Request, data: bytes, kind: str, keep: str) -> Response:
    """Response with the ETag of its content; 304 if the browser has it."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": keep}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    return Response(data, 200, headers | {"content-type": kind})


def query_int(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Integer of the query string. Raises UserError if invalid."""
    return wire.parse_int(request.query_params.get(name, str(default)), name, low, high)


def parse_token(text: str | None) -> int | str | None:
    """Parses a token id, or returns the token's text."""
    if text is None or text == "":
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


# ---------------------------------------------------------------------------------------- mistakes


async def user_error_response(request: Request, error: Exception) -> Response:
    """Error response to a UserError: 400, 404 or 413."""
    if isinstance(error, wire.ResponseTooLarge):
        return json_response(
            {"error": str(error)} | ({"pooled": error.pooled} if error.pooled else {}), 413
        )
    return json_response({"error": str(error)}, 404 if isinstance(error, NotFound) else 400)


async def disconnect_response(request: Request, error: Exception) -> Response:
    return Response(None, 499)


async def unknown_route_response(request: Request, error: Exception) -> Response:
    """Error response to an unknown path or method."""
    status = getattr(error, "status_code", 404)
    message = (
        "There is nothing at this address."
        if status == 404
        else "This address does not take that method."
    )
    return json_response({"error": message}, status)


async def server_error_response(request: Request, error: Exception) -> Response:
    """Error response to an internal error or lack of memory."""
    return json_response({"error": _error_message(error)}, 500)


def _error_message(error: Exception) -> str:
    if isinstance(error, MemoryError) or "memory" in str(error):
        return "There is not enough memory for this; take a shorter text or a smaller model."
    note("".join(traceback.format_exception(error)))
    return f"The server made a mistake ({type(error).__name__}); its terminal says where."

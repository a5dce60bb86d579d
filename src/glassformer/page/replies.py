"""Requests and answers: work in threads that ends when nobody waits, JSON, events, mistakes as
sentences."""

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
from .models import Check, Missing

T = TypeVar("T")
MOST_BODY = 8 << 20


class Gone(Exception):
    """Nobody waits for the answer any more."""


def check_that(gone: threading.Event) -> None:
    """Raise Gone where that is set."""
    if gone.is_set():
        raise Gone


async def work(request: Request, task: Callable[[Check], T]) -> T:
    """``task(check)`` in a thread; where the browser goes away, its ``check`` raises Gone at the
    next chance."""
    gone = threading.Event()
    doing = asyncio.ensure_future(to_thread.run_sync(task, partial(check_that, gone)))
    try:
        while not (await asyncio.wait({doing}, timeout=0.1))[0]:
            if await request.is_disconnected():
                gone.set()
        return doing.result()
    finally:
        gone.set()


async def streamed(first: Any, steps: Iterator[Any], gone: threading.Event) -> AsyncIterator[bytes]:
    """Server-sent events of what a generator gives; it ends at its next token when the reader is
    gone."""
    try:
        yield event(*first)
        while (made := await to_thread.run_sync(next, steps, None)) is not None:
            yield event(*made)
    except UserError as error:
        yield event("error", {"error": str(error)})
    except Gone:
        pass
    except Exception as error:
        yield event("error", {"error": _sentence(error)})
    finally:
        gone.set()


def event(name: str, data: Any, id: str | None = None) -> bytes:
    """One server-sent event; one called ``token`` or ``message`` has no name."""
    named = "" if name in ("token", "message") else f"event: {name}\n"
    number = "" if id is None else f"id: {id}\n"
    return f"{number}{named}data: {dumped(data)}\n\n".encode()


def events(stream: AsyncIterator[bytes]) -> Response:
    """A stream of events."""
    sent = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, 200, sent, "text/event-stream")


async def body(request: Request) -> dict[str, Any]:
    """What was posted, a JSON object within a bound."""
    held = bytearray()
    async for piece in request.stream():
        held += piece
        if len(held) > MOST_BODY:
            raise wire.TooMuch(
                f"A request has {MOST_BODY >> 20} MiB at most, and this is more; shorten the text.",
                "",
            )
    return files.json_object(held.decode("utf-8", "replace"), "The request", "send an object")


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer that nobody keeps."""
    return Response(dumped(value), status, {"cache-control": "no-store"}, "application/json")


def dumped(value: Any) -> str:
    """As JSON; what is not finite by its name."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return files.json_number(value) if isinstance(value, float) else value


def tagged(request: Request, data: bytes, kind: str, keep: str) -> Response:
    """Bytes with the tag of their content; nothing where the browser has them."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    sent = {"etag": tag, "cache-control": keep}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, sent)
    return Response(data, 200, sent | {"content-type": kind})


def whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query. Raises UserError for another one."""
    return wire.number(request.query_params.get(name, str(default)), name, low, high)


def token_of(said: str | None) -> int | str | None:
    """A token by its id, or by its text."""
    if said is None or said == "":
        return None
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else said


# ---------------------------------------------------------------------------------------- mistakes


async def mistake(request: Request, error: Exception) -> Response:
    """A user's mistake: its sentence."""
    if isinstance(error, wire.TooMuch):
        return answer(
            {"error": str(error)} | ({"pooled": error.pooled} if error.pooled else {}), 413
        )
    return answer({"error": str(error)}, 404 if isinstance(error, Missing) else 400)


async def left(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(None, 499)


async def unknown(request: Request, error: Exception) -> Response:
    """No such route."""
    status = getattr(error, "status_code", 404)
    said = (
        "There is nothing at this address."
        if status == 404
        else "This address does not take that method."
    )
    return answer({"error": said}, status)


async def broken(request: Request, error: Exception) -> Response:
    """A mistake of ours, or no memory."""
    return answer({"error": _sentence(error)}, 500)


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError) or "memory" in str(error):
        return "There is not enough memory for this; take a shorter text or a smaller model."
    note("".join(traceback.format_exception(error)))
    return f"The server made a mistake ({type(error).__name__}); its terminal says where."

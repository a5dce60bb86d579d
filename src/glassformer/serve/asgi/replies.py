"""Requests and answers of the API and of the page: one class of error, bodies and answers in JSON,
and work that ends when its client disconnects.

The API gives each request an id (RequestMiddleware) and answers errors as OpenAI does; a request
without one is the page's, whose errors are a sentence.

400 401 403 404 405 408 413 415 431   the request is wrong: do not send it again
429 503                               the server is busy, or ends: send it again later (Retry-After)
500                                   the server made a mistake
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import UserError, note
from ...core.files import JsonObject
from ...sight.labels import json_number
from .limits import (
    BODY_SECONDS,
    LARGE_BODY,
    MOST_BODY,
    MOST_HEADER_LINES,
    MOST_HEADERS,
    PIECE_BYTES,
    SMALL_JSON,
)

T = TypeVar("T")
CancelCheck = Callable[[], None]
"""Raises ClientDisconnected where nobody waits for the answer any more."""

ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = ("/health",)
LATE = "late"  # in the state of a request that came while the server ends
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
ROUTING_ERRORS = {
    404: "There is nothing at this address.",
    405: "This address does not take that method.",
}


class ClientDisconnected(Exception):
    """Raised when the client has disconnected."""


class HttpError(UserError):
    """Error response; ``param`` is the invalid field of the request, ``pooled`` the address of a
    smaller answer."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        pooled: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers
        self.pooled = pooled

    def body(self, request_id: str | None) -> JsonObject:
        """OpenAI's error object for a request of the API; a sentence for the page."""
        if request_id is None:
            return {"error": str(self)} | ({"pooled": self.pooled} if self.pooled else {})
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {
            "message": str(self),
            "type": ERROR_TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error, "request_id": request_id}


def not_found(message: str) -> HttpError:
    return HttpError(404, message)


def refuse(
    condition: bool, message: str, param: str | None = None, code: str | None = None
) -> None:
    """Raises HttpError 400 if ``condition`` holds."""
    if condition:
        raise HttpError(400, message, param, code)


def request_id(scope: Scope) -> str | None:
    """Id of a request of the API; None for the page's."""
    return scope.get("state", {}).get("id")  # type: ignore[no-any-return]


def http_error(error: BaseException, request_id: str | None) -> HttpError:
    """Converts any exception; internal errors are logged with a traceback that the client does not
    see."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, HTTPException):
        return HttpError(error.status_code, ROUTING_ERRORS.get(error.status_code, error.detail))
    if isinstance(error, UserError):
        status, code = getattr(error, "http_status", (400, None))
        headers = {"retry-after": "1"} if status in (429, 503) else None
        return HttpError(status, str(error), code=code, headers=headers)
    lines = "".join(traceback.format_exception(error))
    place = "its terminal says where"
    if request_id is None:
        note(lines)
    else:
        log_line({"id": request_id, "error": type(error).__name__, "traceback": lines})
        place = f"its log says where, at {request_id}"
    if isinstance(error, MemoryError | RuntimeError) and "memory" in repr(error).lower():
        message = "There was not enough memory for this; take a shorter text or a smaller model."
        return HttpError(500, message, code="out_of_memory")
    return HttpError(500, f"The server made a mistake ({type(error).__name__}); {place}.")


def log_line(fields: Mapping[str, Any]) -> None:
    """Writes one JSON line to standard error; JSON escaping keeps client text from forging
    lines."""
    note(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **fields}))


def error_response(error: BaseException, scope: Scope) -> Response:
    """The answer to a request that raised ``error``."""
    if isinstance(error, ClientDisconnected):
        return Response(None, 499)
    id = request_id(scope)
    answer = http_error(error, id)
    return json_response(answer.body(id), answer.status, answer.headers)


async def handle_error(request: Request, error: Exception) -> Response:
    """Exception handler of both applications."""
    return error_response(error, request.scope)


# -------------------------------------------------------------------------------------------- JSON


async def read_body(
    request: Request, hold: Callable[[int], None] = lambda count: None
) -> bytearray:
    """Body of at most MOST_BODY bytes; a Content-Length above that is rejected unread, and ``hold``
    is called with the size of each piece. Raises HttpError for a body that is too large or does not
    come."""
    length = request.headers.get("content-length", "0")
    is_allowed = length.isdigit() and int(length) <= MOST_BODY
    data = bytearray()
    pieces = request.stream()
    while is_allowed and len(data) <= MOST_BODY:
        try:
            piece = await asyncio.wait_for(anext(pieces, None), BODY_SECONDS)
        except TimeoutError:
            message = f"Nothing came for {BODY_SECONDS:g} seconds in the body; send it again."
            raise HttpError(408, message, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise ClientDisconnected from None
        if piece is None:
            return data
        hold(len(piece))
        data += piece
    message = f"A request has {MOST_BODY >> 20} MiB at most, and this is more; shorten it."
    raise HttpError(413, message)


class PythonDecoder(json.JSONDecoder):
    """JSON decoder for large bodies: other threads run meanwhile, which the scanner in C would keep
    waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def from_json(content: bytes | bytearray) -> Any:
    """Decodes a body. Raises HttpError."""
    try:
        return json.loads(content, cls=PythonDecoder if len(content) > LARGE_BODY else None)
    except (ValueError, RecursionError):
        message = "The body cannot be read as JSON; send an object in UTF-8."
        raise HttpError(400, message, code="invalid_json") from None


def to_json(value: Any) -> str:
    """Encodes compact JSON; numbers that are not finite become strings."""
    try:
        return ENCODER.encode(value)
    except ValueError:
        return to_json(_finite(value))


def small_json(value: Any) -> bytes | None:
    """``encode_json`` of a small value; None for one that a thread should write."""
    try:
        pieces = [*islice(ENCODER.iterencode(value), SMALL_JSON + 1)]
        return "".join(pieces).encode("utf-8", "replace") if len(pieces) <= SMALL_JSON else None
    except ValueError:
        return None


def encode_json(value: Any) -> bytes:
    """``to_json`` by the encoder in Python: other threads run meanwhile, which the one in C keeps
    waiting. Half of a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""
    try:
        return "".join(ENCODER.iterencode(value)).encode("utf-8", "replace")
    except ValueError:  # numbers that are not finite
        return to_json(value).encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


class CountedResponse(Response):
    """A response that is sent piece by piece: what a client does not read waits here, where it is
    counted. ``close`` is called when all but the last piece was read, or nobody reads it."""

    close: Callable[[], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._respond(scope, receive, send)
        finally:
            if self.close is not None:
                self.close()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self.status_code
        await send({"type": "http.response.start", "status": status, "headers": self.raw_headers})
        for start in range(0, len(self.body) or 1, PIECE_BYTES):
            end = start + PIECE_BYTES
            more = end < len(self.body)
            body = self.body[start:end]
            await send({"type": "http.response.body", "body": body, "more_body": more})


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> CountedResponse:
    """JSON response that is never cached."""
    headers = {"cache-control": "no-store", **(headers or {})}
    content = value if isinstance(value, bytes) else to_json(value).encode("utf-8", "replace")
    return CountedResponse(content, status, headers, "application/json")


# -------------------------------------------------------------------------- work for a client


async def disconnected(request: Request) -> None:
    """Returns when the client disconnects; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its cleanup."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def until_disconnect(leaving: Awaitable[None], work: Awaitable[T]) -> T:
    """Awaits ``work``; cancels it and raises ClientDisconnected where ``leaving`` ends before."""
    pending = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(leaving)
    try:
        await asyncio.wait({pending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not pending.done():
            raise ClientDisconnected
        return pending.result()
    finally:
        await cancel_and_wait(pending)
        await cancel_and_wait(disconnect)


def check_connected(gone: threading.Event) -> None:
    if gone.is_set():
        raise ClientDisconnected


# ----------------------------------------------------------------- every request of the API


@dataclass
class RequestStats:
    """Token counts and finish reasons of one HTTP request, for its log line."""

    model: str | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finish: list[str] = field(default_factory=list)


@dataclass
class RequestMiddleware:
    """The first to see a request and the last to see its answer: id, key, bounds, log.

    ``identify`` names a client by its headers and raises HttpError 401; None where no key is needed.
    """

    app: ASGIApp
    identify: Callable[[Headers], str] | None
    log: bool = True
    load: int = 0  # answers under way

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

        self.load += 1
        try:
            self._check(scope, headers)
            await self.app(scope, receive, sending)
        except ClientDisconnected:
            status = 499
        except asyncio.CancelledError:
            if not started:
                ending = HttpError(503, "The server ended before this was answered; send it again.")
                await error_response(ending, scope)(scope, receive, sending)
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
            self.load -= 1
            if self.log:
                write_line(scope, id, status, time.monotonic() - start, tally)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises HttpError 503 where the server ends, 431 for too many headers, 401 for a client that
        may not come in."""
        if scope["state"].get(LATE):
            later = {"retry-after": "1", "connection": "close"}
            raise HttpError(503, "The server ends; send this later.", headers=later)
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size > MOST_HEADERS or len(headers.raw) > MOST_HEADER_LINES:
            message = (
                f"A request has {MOST_HEADER_LINES} headers and {MOST_HEADERS >> 10} KiB of "
                "them at most; send less."
            )
            raise HttpError(431, message)
        if self.identify is not None and scope["path"] not in OPEN_PATHS:
            scope["state"]["client"] = self.identify(headers)


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

"""Middleware around every request of the API: id, API key, header bounds, log line."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .asgi.limits import MOST_HEADER_LINES, MOST_HEADERS
from .asgi.replies import ClientDisconnected, HttpError, error_response, log_line
from .asgi.security import check_key
from .metrics import Metrics
from .tracking import RequestStats

ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = ("/health",)


class RequestMiddleware:
    """The first to see a request and the last to see its answer: id, key, bounds, log.

    ``keys`` are those that let a client in, None for no need of one.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str] | None, metrics: Metrics, log: bool = True
    ) -> None:
        self.app, self.keys, self.metrics, self.log = app, keys, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, headers, tally = time.monotonic(), Headers(scope=scope), RequestStats()
        client_id = headers.get("x-request-id", "")
        id = client_id if ID.fullmatch(client_id) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {}).update(tally=tally, id=id)
        status = 499  # until an answer begins: the client left
        started = complete = False

        async def sending(message: Message) -> None:
            nonlocal status, started, complete
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
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
    if tally.model is not None:
        line |= {
            "model": tally.model,
            "prompt_tokens": tally.prompt,
            "generated_tokens": tally.generated,
            "finish": tally.finish,
        }
    log_line(line)

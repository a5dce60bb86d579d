"""Middleware around every request: id, API key, body size, log line, errors as JSON."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..asgi.security import App, Guard, is_address
from .errors import ApiError, api_error, log_line
from .following import ClientDisconnected, RequestStats
from .limits import BODY_SECONDS, MOST_BODY, MOST_HEADER_LINES, MOST_HEADERS
from .metrics import Metrics

ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = ("/health",)


class HostCheck(Guard):
    """Host, Origin and JSON, as the page's; refusals in OpenAI's form.

    ``addresses``: any IP address is a name of this server too. A page of another site that points
    its own name here has that name as Host.
    """

    hint = "; use its IP address, 127.0.0.1 or localhost, or start it with --allow-host NAME"

    def __init__(self, app: App, hosts: frozenset[str], addresses: bool = False) -> None:
        super().__init__(app, hosts)
        self.addresses = addresses

    def is_allowed_host(self, name: str) -> bool:
        return super().is_allowed_host(name) or (self.addresses and is_address(name))

    def refusal_app(self, status: int, sentence: str) -> App:
        """Application that answers a rejected request."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await ApiError(status, sentence).response(scope["state"]["id"])(scope, receive, send)

        return answer


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers of a request by lower-case name."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


class RequestMiddleware:
    """The first to see a request and the last to see its answer: id, key, bounds, log.

    ``keys`` are those that let a client in, None for no need of one. ``ending`` is asked whether
    the server ends.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str] | None, metrics: Metrics, log: bool = True
    ) -> None:
        self.app, self.keys, self.metrics, self.log = app, keys, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, headers, tally = time.monotonic(), headers_of(scope), RequestStats()
        client_id = headers.get("x-request-id", "")
        id = client_id if ID.fullmatch(client_id) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {}).update(tally=tally, id=id)
        status = 499  # until an answer begins: the client left
        started = complete = False

        async def sending(message: Message) -> None:
            nonlocal status, started, complete
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", id.encode())]
            complete = message["type"] == "http.response.body" and not message.get(
                "more_body", False
            )
            await send(message)

        self.metrics.load += 1
        try:
            self._check(scope, headers)
            await self.app(scope, BoundedBody(headers, receive).receive, sending)
        except ClientDisconnected:
            status = 499
        except asyncio.CancelledError:
            status = 503
            raise
        except Exception as error:
            if not started:
                await api_error(error, id).response(id)(scope, receive, sending)
            elif (
                not complete
            ):  # Starlette raises again what it has answered; the rest ends the connection
                raise
        finally:
            self.metrics.load -= 1
            if self.log:
                write_line(scope, id, status, time.monotonic() - start, tally)

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Raises ApiError 431 for too many headers, 401 without a valid API key; the key's number
        identifies the client."""
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MOST_HEADERS or len(scope["headers"]) > MOST_HEADER_LINES:
            message = (
                f"A request has {MOST_HEADER_LINES} headers and {MOST_HEADERS >> 10} KiB of "
                "them at most; send less."
            )
            raise ApiError(431, message, headers={"connection": "close"})
        if self.keys is None or scope["path"] in OPEN_PATHS:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        matches = [
            secrets.compare_digest(key.strip().encode(), valid.encode()) for valid in self.keys
        ]
        scope["state"]["client"] = f"key {matches.index(True)}" if any(matches) else ""
        if kind.lower() != "bearer" or not any(matches):
            message = "The API key is missing or wrong; send it as Authorization: Bearer KEY."
            raise ApiError(
                401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"}
            )


class BoundedBody:
    """Receives a body with a size limit and a timeout per message; a content-length above the limit
    is rejected unread."""

    def __init__(self, headers: Mapping[str, str], receive: Receive) -> None:
        self._receive, self.received, self.complete = receive, 0, False
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BODY:
            raise _too_large()

    async def receive(self) -> Message:
        """Returns the next message: the body, then the disconnect."""
        if self.complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_SECONDS)
        except TimeoutError:
            detail = (
                f"Nothing came for {BODY_SECONDS:g} seconds in the middle of the body; send "
                "it again."
            )
            raise ApiError(408, detail, headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if self.received > MOST_BODY:
                raise _too_large()
        return message


def _too_large() -> ApiError:
    message = f"A request has {MOST_BODY >> 20} MiB at most, and this is more; shorten it."
    return ApiError(413, message, headers={"connection": "close"})


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
        }
        line |= {"finish": tally.finish}
    log_line(line)

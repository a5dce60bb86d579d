"""What surrounds every request: an id, the key, the size of the body, a line in the log, errors as
JSON."""

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
from .following import Gone, Tally
from .limits import BODY_SECONDS, MOST_BODY, MOST_HEADER_LINES, MOST_HEADERS
from .metrics import Metrics

ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = ("/health",)


class Doorkeeper(Guard):
    """Host, Origin and JSON, as the page's; refusals in OpenAI's form.

    ``addresses``: any IP address is a name of this server too. A page of another site that points
    its own name here has that name as Host.
    """

    hint = "; use its IP address, 127.0.0.1 or localhost, or start it with --allow-host NAME"

    def __init__(self, app: App, hosts: frozenset[str], addresses: bool = False) -> None:
        super().__init__(app, hosts)
        self.addresses = addresses

    def is_ours(self, name: str) -> bool:
        """Whether the server may be called so."""
        return super().is_ours(name) or (self.addresses and is_address(name))

    def refused(self, status: int, sentence: str) -> App:
        """The answer to a request that is not let through."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await ApiError(status, sentence).response(scope["state"]["id"])(scope, receive, send)

        return answer


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers by their names in small letters."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


class Outer:
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
        begun, headers, tally = time.monotonic(), headers_of(scope), Tally()
        given = headers.get("x-request-id", "")
        id = given if ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
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
            await self.app(scope, Bounded(headers, receive).receive, sending)
        except Gone:
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
                write_line(scope, id, status, time.monotonic() - begun, tally)

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Raise ApiError 431 for too many headers, 401 without the key; a key's number is its
        client's name."""
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MOST_HEADERS or len(scope["headers"]) > MOST_HEADER_LINES:
            said = (
                f"A request has {MOST_HEADER_LINES} headers and {MOST_HEADERS >> 10} KiB of "
                "them at most; send less."
            )
            raise ApiError(431, said, headers={"connection": "close"})
        if self.keys is None or scope["path"] in OPEN_PATHS:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        right = [secrets.compare_digest(key.strip().encode(), one.encode()) for one in self.keys]
        scope["state"]["client"] = f"key {right.index(True)}" if any(right) else ""
        if kind.lower() != "bearer" or not any(right):
            said = "The API key is missing or wrong; send it as Authorization: Bearer KEY."
            raise ApiError(
                401, said, code="invalid_api_key", headers={"www-authenticate": "Bearer"}
            )


class Bounded:
    """A body within a size, each piece within a time; what is too large is refused before it is
    read."""

    def __init__(self, headers: Mapping[str, str], receive: Receive) -> None:
        self._receive, self.read, self.whole = receive, 0, False
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BODY:
            raise _too_large()

    async def receive(self) -> Message:
        """The next piece; afterwards the client's leaving."""
        if self.whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_SECONDS)
        except TimeoutError:
            said = (
                f"Nothing came for {BODY_SECONDS:g} seconds in the middle of the body; send "
                "it again."
            )
            raise ApiError(408, said, headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            self.read += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.read > MOST_BODY:
                raise _too_large()
        return message


def _too_large() -> ApiError:
    said = f"A request has {MOST_BODY >> 20} MiB at most, and this is more; shorten it."
    return ApiError(413, said, headers={"connection": "close"})


def write_line(scope: Scope, id: str, status: int, seconds: float, tally: Tally) -> None:
    """One line of the log: who asked for what and what it took, and nothing that was said."""
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

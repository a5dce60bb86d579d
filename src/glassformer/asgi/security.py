"""Who may ask a server on this machine, and what its page may load.

Any page that a browser has open can send requests to 127.0.0.1. So the Host must be one of ours (a
foreign name that was pointed at this machine is refused), a browser must say that a request comes
from our own page, and what changes or computes something is JSON by POST, which no form of another
site can send.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[str, str]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "glassformer"
CSP = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'self'"
)
SENT = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer that has none of its own by that name."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_address(host: str) -> bool:
    """Whether a Host without its port is an IP address, an IPv6 one in brackets."""
    try:
        return bool(
            ipaddress.ip_address(
                host[1:-1] if host.startswith("[") and host.endswith("]") else host
            )
        )
    except ValueError:
        return False


def new_token() -> str:
    """What the link holds where others can reach the server."""
    return secrets.token_urlsafe(18)


def host_name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


class Guard:
    """Lets a request through to ``app``, or answers 403 with a sentence; adds SENT to what is
    answered.

    ``hosts`` are the names by which the server may be called, None any (then there is a ``token``,
    in the link and afterwards in a cookie).
    """

    hint = "; open the link that `glassformer page` printed"  # what to do about a refusal

    def __init__(self, app: App, hosts: frozenset[str] | None, token: str | None = None) -> None:
        assert hosts is not None or token is not None
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: Headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        known = self.token is None or self._knows(headers, query)
        status, refusal = self._refusal(scope["method"], headers, known)
        cookie = known and self.token is not None and "token" in query

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                own = [
                    (name.encode(), value.encode())
                    for name, value in SENT.items()
                    if name.encode() not in given
                ]
                if cookie:
                    told = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    own.append((b"set-cookie", told.encode()))
                message["headers"] = [*message["headers"], *own]
            await send(message)

        if refusal is None:
            await self.app(scope, receive, sending)
            return
        await self.refused(status, refusal)(scope, receive, sending)

    def refused(self, status: int, sentence: str) -> App:
        """The answer to a request that is not let through."""
        from starlette.responses import JSONResponse

        return JSONResponse({"error": sentence}, status)

    def is_ours(self, name: str) -> bool:
        """Whether the server may be called so."""
        return self.hosts is None or name in self.hosts

    def _knows(self, headers: Headers, query: dict[str, list[str]]) -> bool:
        assert self.token is not None
        told = [*query.get("token", ())]
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            told += [value] if name == COOKIE else []
        return any(secrets.compare_digest(one.encode(), self.token.encode()) for one in told)

    def _refusal(self, method: str, headers: Headers, known: bool) -> tuple[int, str | None]:
        host = headers.get("host", "")
        if not self.is_ours(host_name(host)):
            return 403, f'This server is not called "{host[:80]}"{self.hint}.'
        if not known:
            return 403, (
                "The link's token is missing; open the whole link that `glassformer page` printed."
            )
        if headers.get("sec-fetch-site", "none") == "cross-site":
            return 403, "Another site asked for this; open the page itself."
        if method in ("GET", "HEAD"):
            return 200, None
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.strip().lower():
            return 403, (
                f'A page of "{origin[:80]}" asked for this, and only this server\'s own may.'
            )
        if method != "POST":
            return 405, f"{method[:10]} is not understood here; GET and POST are."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return 415, "What is posted here is JSON; send it as application/json."
        return 200, None


class PasswordGuard:
    """Lets a request through to ``app`` with one of ``keys`` as password, which a browser asks its
    user for."""

    def __init__(self, app: App, keys: Sequence[str]) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._knows(
            dict(scope["headers"]).get(b"authorization", b"")
        ):
            await self.app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse

        asking = {
            "www-authenticate": 'Basic realm="API key as password, any user name", charset="UTF-8"',
            **SENT,
        }
        said = "This server needs an API key; give it as the password, with any user name."
        await PlainTextResponse(said, 401, asking)(scope, receive, send)

    def _knows(self, header: bytes) -> bool:
        kind, _, coded = header.partition(b" ")
        try:
            password = base64.b64decode(coded.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return False
        right = [secrets.compare_digest(password, key.encode()) for key in self.keys]
        return kind.lower() == b"basic" and any(right)

"""Access control of local servers, and the security headers of their responses.

Any page that a browser has open can send requests to 127.0.0.1. So the Host must be an allowed name
(DNS rebinding is refused), the browser must report the same origin, and state changes and
computations are JSON by POST, which no HTML form can send.
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
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer that has none of its own by that name."""


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_address(host: str) -> bool:
    """True if a Host without port is an IP address (IPv6 in brackets)."""
    try:
        return bool(
            ipaddress.ip_address(
                host[1:-1] if host.startswith("[") and host.endswith("]") else host
            )
        )
    except ValueError:
        return False


def new_token() -> str:
    """Random access token for the page's link."""
    return secrets.token_urlsafe(18)


def host_name(host: str) -> str:
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


class Guard:
    """Passes requests to ``app`` or answers 403; adds SECURITY_HEADERS to responses.

    ``hosts`` are the allowed Host names, None any (then a ``token`` is required, from the link and
    later from a cookie).
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
        authorized = self.token is None or self._is_authorized(headers, query)
        status, refusal = self._refusal(scope["method"], headers, authorized)
        cookie = authorized and self.token is not None and "token" in query

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [
                    (name.encode(), value.encode())
                    for name, value in SECURITY_HEADERS.items()
                    if name.encode() not in present
                ]
                if cookie:
                    cookie_header = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    added.append((b"set-cookie", cookie_header.encode()))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        if refusal is None:
            await self.app(scope, receive, sending)
            return
        await self.refusal_app(status, refusal)(scope, receive, sending)

    def refusal_app(self, status: int, sentence: str) -> App:
        """Application that answers a rejected request."""
        from starlette.responses import JSONResponse

        return JSONResponse({"error": sentence}, status)

    def is_allowed_host(self, name: str) -> bool:
        return self.hosts is None or name in self.hosts

    def _is_authorized(self, headers: Headers, query: dict[str, list[str]]) -> bool:
        assert self.token is not None
        tokens = [*query.get("token", ())]
        for item in headers.get("cookie", "").split(";"):
            name, _, value = item.strip().partition("=")
            tokens += [value] if name == COOKIE else []
        return any(secrets.compare_digest(token.encode(), self.token.encode()) for token in tokens)

    def _refusal(self, method: str, headers: Headers, authorized: bool) -> tuple[int, str | None]:
        host = headers.get("host", "")
        if not self.is_allowed_host(host_name(host)):
            return 403, f'This server is not called "{host[:80]}"{self.hint}.'
        if not authorized:
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
    """Requires one of ``keys`` as HTTP Basic password; the browser asks its user for it."""

    def __init__(self, app: App, keys: Sequence[str]) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_authorized(
            dict(scope["headers"]).get(b"authorization", b"")
        ):
            await self.app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse

        headers = {
            "www-authenticate": 'Basic realm="API key as password, any user name", charset="UTF-8"',
            **SECURITY_HEADERS,
        }
        message = "This server needs an API key; give it as the password, with any user name."
        await PlainTextResponse(message, 401, headers)(scope, receive, send)

    def _is_authorized(self, header: bytes) -> bool:
        kind, _, coded = header.partition(b" ")
        try:
            password = base64.b64decode(coded.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return False
        matches = [secrets.compare_digest(password, key.encode()) for key in self.keys]
        return kind.lower() == b"basic" and any(matches)

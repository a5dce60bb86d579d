"""Access control of local servers, and the security headers of their responses.

Any page that a browser has open can send requests to 127.0.0.1. So the Host must be an allowed name
(DNS rebinding is refused), the browser must report the same origin, and state changes and
computations are JSON by POST, which no HTML form can send.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .replies import HttpError, error_response

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

SINGLE_HEADERS = ("host", "origin", "referer", "sec-fetch-site", "content-type")
"""Headers that say who asks: of two, one check might read the first and another the second."""

CHALLENGES = {
    "Basic": (
        "This server needs an API key; give it as the password, with any user name.",
        'Basic realm="API key as password, any user name", charset="UTF-8"',
    ),
    "Bearer": (
        "The API key is missing or wrong; send it as Authorization: Bearer KEY.",
        "Bearer",
    ),
}
"""Message and challenge of a 401: a browser asks its user for a password, a program has the key."""


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
    is_port = port.isascii() and port.isdigit()
    return name if colon and is_port else host.strip().lower()


def is_origin_of(origin: str, host: str) -> bool:
    """True if an Origin is a site of this Host; by https too, since a proxy may add TLS."""
    scheme, _, authority = origin.lower().partition("://")
    return scheme in ("http", "https") and authority == host.strip().lower()


def matching_key(candidate: str, keys: Sequence[str]) -> int | None:
    """Number of the key that equals ``candidate``, compared in constant time."""
    coded = candidate.encode()
    matches = [secrets.compare_digest(coded, key.encode()) for key in keys]
    return matches.index(True) if any(matches) else None


def check_key(headers: Headers, keys: Sequence[str], scheme: Literal["Basic", "Bearer"]) -> int:
    """Number of the API key in the Authorization header. Raises HttpError 401."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    key = key.strip()
    if scheme == "Basic":
        try:
            key = base64.b64decode(key, validate=True).partition(b":")[2].decode()
        except ValueError:
            key = ""
    number = matching_key(key, keys)
    if kind.lower() != scheme.lower() or number is None:
        message, challenge = CHALLENGES[scheme]
        fields = {"www-authenticate": challenge}
        raise HttpError(401, message, code="invalid_api_key", headers=fields)
    return number


@dataclass(frozen=True)
class Guard:
    """Passes requests to ``app`` or answers 401, 403, 405 and 415; adds SECURITY_HEADERS.

    ``hosts`` are the allowed Host names, None any; ``addresses`` allows any IP address beside them.
    With a ``token`` it is required, from the link and later from a cookie. With ``passwords`` one
    of them is required as HTTP Basic password, which the browser asks its user for. ``hint`` says
    what to do about a wrong Host.
    """

    app: ASGIApp
    hosts: frozenset[str] | None
    token: str | None = None
    _: KW_ONLY
    addresses: bool = False
    passwords: Sequence[str] | None = None
    hint: str = "open the link that `glassformer page` printed"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        app = self.app
        is_link = self.token is not None and "token" in request.query_params
        try:
            self._check(scope["method"], request)
        except HttpError as error:
            app = error_response(error, scope)
            is_link = False

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if is_link:
                    cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", cookie)
            await send(message)

        await app(scope, receive, send_secured)

    def _check(self, method: str, request: HTTPConnection) -> None:
        """Raises HttpError for a request that may not be answered."""
        headers = request.headers
        if self.passwords is not None:
            request.state.client = f"key {check_key(headers, self.passwords, 'Basic')}"
        for name in SINGLE_HEADERS:
            if len(headers.getlist(name)) > 1:
                raise HttpError(403, f"There are two headers {name}; send one.")
        host = headers.get("host", "")
        name = host_name(host)
        is_address_allowed = self.addresses and is_address(name)
        if self.hosts is not None and name not in self.hosts and not is_address_allowed:
            raise HttpError(403, f'This server is not called "{host[:80]}"; {self.hint}.')
        tokens = (request.query_params.get("token", ""), request.cookies.get(COOKIE, ""))
        if self.token is not None and all(
            matching_key(token, [self.token]) is None for token in tokens
        ):
            message = (
                "The link's token is missing; open the whole link that `glassformer page` printed."
            )
            raise HttpError(403, message)
        asking = headers.get("sec-fetch-site", "same-origin").strip().lower()
        is_read = method in ("GET", "HEAD")
        if asking != "same-origin" and (asking == "cross-site" or not is_read):
            raise HttpError(403, "Another site asked for this; open the page itself.")
        if is_read:
            return
        origin = headers.get("origin")
        if origin is None and "referer" in headers:  # its origin says as much
            origin = "/".join(headers["referer"].split("/")[:3])
        if origin is not None and not is_origin_of(origin, host):
            message = f'A page of "{origin[:80]}" asked for this, and only this server\'s own may.'
            raise HttpError(403, message)
        if method != "POST":
            raise HttpError(405, f"{method[:10]} is not understood here; GET and POST are.")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            message = "Bodies are JSON here; send them as application/json."
            raise HttpError(415, message)

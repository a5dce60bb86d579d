"""Server process: a socket, uvicorn, and engines closed at shutdown."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from ..core.errors import UserError, need, note
from .app import application
from .asgi.limits import IDLE_SECONDS, MOST_HEADERS
from .asgi.security import LOOPBACK, is_loopback
from .protocol import Server, TimedProtocol
from .registry import Registry


def keys_of(path: Path) -> list[str]:
    """The API keys in a file, one a line; lines that begin with # are notes. Raises UserError where
    there are none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"--api-key-file {path} cannot be read ({error.strerror}); check the path."
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"--api-key-file {path} is not UTF-8 text; write a key a line.") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    need(bool(keys), f"--api-key-file {path} holds no key; write one a line.")
    if os.name == "posix" and path.stat().st_mode & 0o004:
        note(
            f"--api-key-file {path} can be read by every user of this machine; chmod 640 {path} "
            "keeps it from them."
        )
    return keys


def names_of(host: str, keyed: bool, more: Sequence[str] = ()) -> frozenset[str] | None:
    """The names by which a server on ``host`` may be called; None any, where others reach it and
    need a key."""
    if keyed and not is_loopback(host):
        return None
    machine = (
        []
        if is_loopback(host)
        else [socket.gethostname(), socket.getfqdn(), f"{socket.gethostname()}.local"]
    )
    return frozenset(name.lower() for name in (*LOOPBACK, host, f"[{host}]", *machine, *more))


def run(
    registry: Registry,
    version: str,
    bound: socket.socket,
    host: str,
    keys: Sequence[str] | None,
    drain: int,
    allow_hosts: Sequence[str] = (),
    proxies: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT; then answer what is under way, for ``drain`` seconds or until
    a second one.

    ``proxies`` are the addresses whose X-Forwarded-For is believed.
    """
    hosts = names_of(host, keys is not None, allow_hosts)
    app, api = application(
        registry, version, hosts=hosts, addresses=not is_loopback(host), keys=keys
    )
    settings = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[*proxies],
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=drain,
        h11_max_incomplete_event_size=MOST_HEADERS,
    )

    def ended() -> None:
        print(
            "A second signal: ended at once; what was under way is given up.",
            file=sys.stderr,
            flush=True,
        )

    server = Server(settings, on_exit=api.end, on_end=ended)
    try:
        server.run(sockets=[bound])
    finally:
        registry.close()

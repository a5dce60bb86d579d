"""Server process: a socket, uvicorn with timeouts for slow headers and slow readers, and engines
closed at shutdown."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ..core import files
from ..core.errors import UserError, need, note
from .app import Api, application
from .asgi.limits import (
    HEADERS_SECONDS,
    IDLE_SECONDS,
    LAST_SECONDS,
    MOST_HEADERS,
    WRITE_SECONDS,
)
from .asgi.replies import LATE, WRITE_CHUNK
from .asgi.security import LOOPBACK, is_loopback
from .served_models import Registry


class EndingState(ServerState):
    """uvicorn's state that all connections share; ``ending`` once the server takes no new request."""

    ending = False


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with two timeouts that it lacks: headers and writes."""

    headers_clock: asyncio.TimerHandle | None = None
    write_clock: asyncio.TimerHandle | None = None
    ending = False
    descriptor = -1  # of the socket, while ``write_chunk`` may write

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection may be idle as long as one between two requests: a busy client needs its
        time from the connection to the request. What comes while the server ends is answered 503."""
        super().connection_made(transport)
        self.write_lock = threading.Lock()
        self.loop_thread = threading.get_ident()
        if isinstance(self.loop, asyncio.SelectorEventLoop) and self.scheme == "http":
            self.descriptor = transport.get_extra_info("socket").fileno()
        if isinstance(self.server_state, EndingState) and self.server_state.ending:
            self.ending = True
            self.app_state = {**self.app_state, LATE: True}
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Starts the timeout at a request's first bytes, stops it when the headers are complete."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop("headers_clock")
            self.cycle.keep_alive = not self.ending
            if self.cycle.scope["method"] != "HEAD" and self.cycle.scope["http_version"] == "1.1":
                self.cycle.scope["state"][WRITE_CHUNK] = self.write_chunk
        elif self.headers_clock is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers(HEADERS_SECONDS)

    def pause_writing(self) -> None:
        """Starts the write timeout while the client does not read."""
        super().pause_writing()
        self.write_clock = self.write_clock or self.loop.call_later(
            WRITE_SECONDS, self.transport.abort
        )

    def resume_writing(self) -> None:
        """Stops the write timeout."""
        super().resume_writing()
        self._stop("write_clock")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops both timeouts."""
        self._stop("headers_clock")
        self._stop("write_clock")
        with self.write_lock:  # another connection may get this number
            self.descriptor = -1
        super().connection_lost(exc)

    def write_chunk(self, body: bytes) -> bool:
        """Writes a chunk of a stream from any thread, without h11: a chunk between the first and the
        last changes no state of a connection. False where it has to be sent, since others wait."""
        cycle = self.cycle
        transport = self.transport
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        with self.write_lock:
            if transport.get_write_buffer_size() or cycle.conn.our_state is not h11.SEND_BODY:
                return False
            try:
                size = os.write(self.descriptor, chunk)
            except OSError:  # a reader that is slow, or has gone
                return False
            if size < len(chunk):  # the loop writes the remainder, before anything else
                self.descriptor = -1
                if threading.get_ident() == self.loop_thread:
                    transport.write(chunk[size:])
                else:
                    self.loop.call_soon_threadsafe(transport.write, chunk[size:])
        return True

    def shutdown(self) -> None:
        """The server ends: a connection that was accepted may still send its request, and no second
        one."""
        is_first = not self.transport.is_closing() and self.cycle is None
        if self.headers_clock is None and not is_first:  # none is on its way
            super().shutdown()
            return
        self.ending = True
        self._await_headers(LAST_SECONDS)

    def _await_headers(self, seconds: float) -> None:
        self._stop("headers_clock")
        self.headers_clock = self.loop.call_later(seconds, self.transport.close)

    def _stop(self, name: str) -> None:
        clock: asyncio.TimerHandle | None = getattr(self, name)
        if clock is not None:
            clock.cancel()
            setattr(self, name, None)


class Server(uvicorn.Server):
    """Ends with 0 at SIGTERM and SIGINT, once what is under way is answered; a second signal does
    not wait.

    ``api`` hears of the first.
    """

    def __init__(self, settings: uvicorn.Config, api: Api) -> None:
        super().__init__(settings)
        self.api = api
        self.server_state = EndingState()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the connections that the system has accepted, and their bytes, and answer them; the
        socket is open meanwhile, and new ones get 503."""
        for _ in range(3):
            await asyncio.sleep(0.01)
        state = self.server_state
        assert isinstance(state, EndingState)
        state.ending = True
        accepted = {*state.connections}
        for connection in accepted:
            connection.shutdown()
        drain = self.config.timeout_graceful_shutdown or 0
        end = time.monotonic() + drain
        while accepted & state.connections and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        self.config.timeout_graceful_shutdown = max(0, int(end - time.monotonic()))
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """One signal: drain; two: end. uvicorn raises none again that it has not noted itself."""
        if self.should_exit and not self.force_exit:
            message = "A second signal: ended at once; what was under way is given up."
            print(message, file=sys.stderr, flush=True)
        self.force_exit = self.should_exit
        self.should_exit = True
        self.api.ending = True


def keys_of(path: Path) -> list[str]:
    """The API keys in a file, one a line; lines that begin with # are notes. Raises UserError where
    there are none."""
    try:
        lines = files.read_text(path).splitlines()
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

    server = Server(settings, api)
    # a collection after a large body would walk every module, and all requests would wait for it
    gc.collect()
    gc.freeze()
    try:
        server.run(sockets=[bound])
    finally:
        registry.close()

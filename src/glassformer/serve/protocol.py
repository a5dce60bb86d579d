"""Connections with timeouts for slow headers and slow readers, and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .asgi.limits import HEADERS_SECONDS, LAST_SECONDS, WRITE_SECONDS


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with two timeouts that it lacks: headers and writes."""

    headers_clock: asyncio.TimerHandle | None = None
    write_clock: asyncio.TimerHandle | None = None
    ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the headers timeout of a new connection."""
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Stops the timeout when the headers are complete, restarts it at the next request's first
        bytes."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop("headers_clock")
            self.cycle.keep_alive = not self.ending
        elif self.headers_clock is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()

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
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server ends: a connection that was accepted may still send its request, and no second
        one."""
        if self.headers_clock is None or self.transport.is_closing():  # none is on its way
            super().shutdown()
            return
        self.ending = True
        self.headers_clock.cancel()
        self.headers_clock = self.loop.call_later(LAST_SECONDS, self.transport.close)

    def _await_headers(self) -> None:
        self.headers_clock = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)

    def _stop(self, name: str) -> None:
        clock: asyncio.TimerHandle | None = getattr(self, name)
        if clock is not None:
            clock.cancel()
            setattr(self, name, None)


class Server(uvicorn.Server):
    """Ends with 0 at SIGTERM and SIGINT, once what is under way is answered; a second signal does
    not wait.

    ``on_exit`` is called at the first, ``on_end`` at the second.
    """

    def __init__(
        self,
        settings: uvicorn.Config,
        on_exit: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(settings)
        self.on_exit, self.on_end = on_exit, on_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the connections that the system has accepted, and their bytes, before the socket is
        closed."""
        for _ in range(3):
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take the signals, and do not raise them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            signum: signal.signal(signum, self.handle_exit)
            for signum in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """One signal: drain; two: end."""
        if self.should_exit and not self.force_exit:
            self.on_end()
        self.force_exit = self.should_exit
        self.should_exit = True
        self.on_exit()

"""Run first by a server under test (--use): short clocks, a small queue, and seeds that make the
engine fail."""

from __future__ import annotations

import socket
import time
from typing import Any

from glassformer.serve.asgi import limits, listening
from glassformer.serve.engine.engine import Worker
from glassformer.serve.engine.sequence import Sequence

limits.HEADERS_SECONDS = 1.0
limits.BODY_SECONDS = 1.0
limits.WRITE_SECONDS = 2.0
limits.IDLE_SECONDS = 6
FAILS, NO_MEMORY, DIES, SLOW, LEAVES = 666_001, 666_002, 666_003, 666_004, 666_005
AFTER = 3  # tokens
plain, listen = Sequence.add, listening._listen


def add(self: Sequence, *args: Any) -> Any:
    """One more token, or what a request's seed asks for."""
    event = plain(self, *args)
    seed = self.handle.seed
    if seed == SLOW:
        time.sleep(0.02)
    if len(self.tokens) == AFTER and seed == FAILS:
        raise RuntimeError("the engine fails, as the test wants it")
    if len(self.tokens) == AFTER and seed == NO_MEMORY:
        raise MemoryError
    if len(self.tokens) == AFTER and seed == LEAVES:
        raise SystemExit
    if len(self.tokens) == AFTER and seed == DIES:
        Worker.step = Worker.end_all = ended  # type: ignore[method-assign]
    return event


Sequence.add = add


def ended(*args: Any) -> None:
    """Ends the engine's thread: what nothing catches."""
    raise SystemExit


def small(host: str, port: int) -> socket.socket:
    """A socket whose connections hold little that is not read."""
    result = listen(host, port)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    return result


listening._listen = small

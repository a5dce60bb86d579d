"""Resources that clients share beside the engine, in fair parts: threads for the work of the API
and of the page, and the bytes of bodies and answers that are held.

    small lane   bodies, texts and answers of some kilobytes; never behind heavy work
    heavy lane   large ones, forms that are compiled, edits, inspections

A client is an API key, or an address where no key is needed.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from starlette.requests import Request

from .asgi.limits import MOST_BODIES, SMALL_WORK
from .asgi.replies import HttpError, disconnected, until_disconnect
from .engine.results import as_exception
from .engine.scheduler import FairQueue

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
SMALL_THREADS = 4
HEAVY_THREADS = 2


def client_of(http: Request) -> str:
    """Client id for fair shares: the API key's number, or the IP address."""
    address = http.client.host if http.client else ""
    return getattr(http.state, "client", "") or address


@dataclass(eq=False)
class Turn:
    """Work of a client that waits for a thread, or runs in one."""

    client: str
    work: Callable[[], Any]
    answer: asyncio.Future[Any]
    age: int = 0  # the number of its request
    started: bool = False


class TurnQueue(FairQueue[Turn]):
    """A queue where of one client the oldest request comes first, so that few are half answered and
    in memory."""

    def add(self, item: Turn, first: bool = False) -> None:
        insort(self._queues.setdefault(item.client, deque()), item, key=lambda turn: turn.age)


class Lane:
    """Threads that clients take turns at; one client has all of them but one at most, so that another
    finds one free.

    A thread is free again when its work has ended, whether or not the client still waits for it.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.running = Counter[str]()
        self.waiting = TurnQueue()
        self._pool = ThreadPoolExecutor(threads, "glassformer-lane")

    async def run(self, client: str, work: Callable[[*Ts], T], *args: *Ts, age: int = 0) -> T:
        """Runs ``work`` of a request of that ``age`` in a thread. Work that is cancelled while it
        waits never starts."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        turn = Turn(client, partial(_run, work, *args), answer, age)
        self.waiting.add(turn)
        self._start()
        try:
            return await answer
        finally:
            if not turn.started:
                self.waiting.remove(turn)

    def _start(self) -> None:
        """Starts work while there are threads for it."""
        while len(self.waiting) and self.running.total() < self.threads:
            turn = self.waiting.peek(self.running)
            assert turn is not None
            if self.running[turn.client] >= max(1, self.threads - 1):
                return  # and no client has fewer
            self.waiting.pop(self.running)
            turn.started = True
            self.running[turn.client] += 1
            running = turn.answer.get_loop().run_in_executor(self._pool, turn.work)
            running.add_done_callback(partial(self._finish, turn))

    def _finish(self, turn: Turn, done: asyncio.Future[Any]) -> None:
        self.running[turn.client] -= 1
        self.running = +self.running
        error = done.exception()
        if not turn.answer.done():
            if error is None:
                turn.answer.set_result(done.result())
            else:
                turn.answer.set_exception(error)
        self._start()


def _run(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Raises other errors for StopIteration, at which a future never ends, and for SystemExit."""
    try:
        return work(*args)
    except BaseException as error:
        raise as_exception(error)  # noqa: B904


class Lanes:
    """The two lanes of a server."""

    def __init__(self, heavy_threads: int = HEAVY_THREADS) -> None:
        self.small = Lane(SMALL_THREADS)
        self.heavy = Lane(heavy_threads)
        self._ages = itertools.count()

    async def run(self, http: Request, size: float, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs a request's ``work`` on so many bytes, characters or numbers. Raises
        ClientDisconnected; the body must have been read before."""
        lane = self.heavy if size > SMALL_WORK else self.small
        if not hasattr(http.state, "age"):
            http.state.age = next(self._ages)
        running = lane.run(client_of(http), work, *args, age=http.state.age)
        return await until_disconnect(disconnected(http), running)


class ByteBudget:
    """Bytes of bodies that are held at once, of all clients together.

    Where it is spent, a client that holds less than its equal share is still let in, so that one
    client's bodies never refuse another's. All together hold twice ``most`` at most.
    """

    def __init__(self, most: int = MOST_BODIES) -> None:
        self.most = most
        self.held = Counter[str]()

    @contextmanager
    def account(self, client: str) -> Iterator[Callable[[int], None]]:
        """Yields what holds so many bytes more or raises HttpError 503, or gives some back; all are
        given back at the end."""
        size = 0

        def hold(count: int) -> None:
            nonlocal size
            after = self.held[client] + count
            share = self.most // len(self.held.keys() | {client})
            if self.held.total() + count > self.most and after > share:
                message = "The server holds as many bytes of requests and answers as it may; send this later."
                raise HttpError(503, message, headers={"retry-after": "1"})
            self.held[client] = after
            size += count

        try:
            yield hold
        finally:
            self.held[client] -= size
            self.held = +self.held

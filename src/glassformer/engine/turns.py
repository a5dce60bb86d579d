"""A queue that is fair between clients."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar


class Client(Protocol):
    """What waits for its turn."""

    @property
    def client(self) -> str: ...


T = TypeVar("T", bound=Client)
EVEN: Mapping[str, int] = MappingProxyType({})


class Turns(Generic[T]):
    """A queue in which clients take turns; of one client the oldest comes first.

    Where ``load`` says how much each client has already, whoever has least comes first.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(self._queues.values())

    def add(self, text: T, first: bool = False) -> None:
        """Behind the client's others, or before them."""
        queue = self._queues.setdefault(text.client, deque())
        if first:
            queue.appendleft(text)
        else:
            queue.append(text)

    def peek(self, load: Mapping[str, int] = EVEN) -> T | None:
        """Whose turn it is."""
        client = min(self._queues, key=lambda client: load.get(client, 0), default=None)
        return None if client is None else self._queues[client][0]

    def pop(self, load: Mapping[str, int] = EVEN) -> T:
        """Take the one whose turn it is; its client is the last in the next round."""
        client = min(self._queues, key=lambda client: load.get(client, 0))
        queue = self._queues[client]
        text = queue.popleft()
        del self._queues[client]
        if queue:
            self._queues[client] = queue
        return text

    def remove(self, text: T) -> None:
        """Take it out, wherever it stands; ValueError where it is not."""
        queue = self._queues.get(text.client, deque())
        queue.remove(text)
        if not queue:
            del self._queues[text.client]

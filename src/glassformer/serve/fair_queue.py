"""A queue of the requests of several clients, who take turns; it needs no torch."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """Item of a queue."""

    @property
    def client(self) -> str: ...


Q = TypeVar("Q", bound=Queued)
EVEN: Mapping[str, int] = MappingProxyType({})


class FairQueue(Generic[Q]):
    """A queue in which clients take turns; of one client the oldest item comes first.

    Where ``load`` counts the items that each client has running, the client with the fewest comes
    first.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Q]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Q]:
        return itertools.chain.from_iterable(self._queues.values())

    def add(self, item: Q, first: bool = False) -> None:
        """Adds an item behind the client's others, or before them."""
        queue = self._queues.setdefault(item.client, deque())
        if first:
            queue.appendleft(item)
        else:
            queue.append(item)

    def peek(self, load: Mapping[str, int] = EVEN) -> Q | None:
        """The next item."""
        client = min(self._queues, key=lambda client: load.get(client, 0), default=None)
        return None if client is None else self._queues[client][0]

    def pop(self, load: Mapping[str, int] = EVEN) -> Q:
        """Removes and returns the next item; its client is the last in the next round."""
        client = min(self._queues, key=lambda client: load.get(client, 0))
        queue = self._queues.pop(client)
        item = queue.popleft()
        if queue:
            self._queues[client] = queue
        return item

    def remove(self, item: Q) -> None:
        """Removes an item, wherever it stands; ValueError where it is not queued."""
        queue = self._queues.get(item.client, deque())
        queue.remove(item)
        if not queue:
            del self._queues[item.client]

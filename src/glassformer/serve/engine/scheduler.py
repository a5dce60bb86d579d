"""Choice of the tokens that the next step computes, by lists and numbers alone: no tensors, no
threads.

    add --> waiting --admit--> running --plan--> chunks --(the runner)--> done --> drop
               ^                  |                        all computed: it rests until ``branch``, or is suspended
               +-----preempt------+      the newest gives its pages back and is computed again later

One budget of tokens a step: sequences that generate come first (a token each, and its draft). The
remaining budget goes to prompts in chunks, in turns between clients, the oldest of each first.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from .pages import PagePool, PrefixCache, Windows
from .sequence import Chunk, Sequence


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
        queue = self._queues[client]
        item = queue.popleft()
        del self._queues[client]
        if queue:
            self._queues[client] = queue
        return item

    def remove(self, item: Q) -> None:
        """Removes an item, wherever it stands; ValueError where it is not queued."""
        queue = self._queues.get(item.client, deque())
        queue.remove(item)
        if not queue:
            del self._queues[item.client]


C = TypeVar("C", bound=Callable[..., Any])


def _atomic(change: C) -> C:
    """Decorates a change of a scheduler that must happen completely: one that fails on the way
    leaves it ``broken``."""

    @functools.wraps(change)
    def wrapper(self: Scheduler, *args: Any, **kwargs: Any) -> Any:
        before = self.broken
        self.broken = True
        result = change(self, *args, **kwargs)
        self.broken = before
        return result

    return wrapper  # type: ignore[return-value]


class Scheduler:
    """Plans steps over the pages of ``pool``, which must hold one sequence of the greatest length.

    ``budget`` is the most tokens a step, ``max_num_seqs`` the most sequences at once; the ``first``
    tokens of a sequence go into one forward pass. ``released`` is called with a sequence whose
    pages were freed, ``copy`` with a page and the page it is to be copied to (None: none can be);
    ``windows`` are the pages of layers with windows.

    Clients have equal shares of the places and pages: where a waiting one has at least two
    sequences fewer in them than another, the newest of that other gives way. After a change that
    failed on the way it is ``broken`` until ``restart``; ``subject`` is the sequence of that
    change.
    """

    def __init__(
        self,
        pool: PagePool,
        size: int,
        *,
        budget: int,
        max_num_seqs: int,
        first: int = 0,
        released: Callable[[Sequence], None] = lambda sequence: None,
        copy: Callable[[int, int], None] | None = None,
        windows: Windows | None = None,
    ) -> None:
        self.pool = pool
        self.size = size
        self.max_num_seqs = max_num_seqs
        self.first = first
        self.budget = max(budget, first, max_num_seqs)
        self.released = released
        self.copy = copy
        self.windows = windows or Windows(pool, size)
        self.prefix = PrefixCache(pool, size)
        self.waiting = FairQueue[Sequence]()
        self.running: list[Sequence] = []  # the oldest first
        self.suspended: set[Sequence] = set()  # those that rest without pages
        self.preempted = 0
        self.broken = False
        self.subject: Sequence | None = None
        self._numbers = itertools.count()
        self._turn = itertools.count()

    @_atomic
    def add(self, sequence: Sequence, first: bool = False) -> None:
        """Queues a sequence behind those of its client, or before them."""
        sequence.number = next(self._numbers)
        self.waiting.add(sequence, first)

    @_atomic
    def drop(self, sequence: Sequence) -> None:
        """Ends a sequence: its pages are freed, full ones stay in the prefix cache.

        Harmless for one that is not scheduled.
        """
        if sequence.number >= 0 and self._take_out(sequence):
            self._release(sequence)
        sequence.number = -1

    def restart(self, without: Collection[Sequence]) -> None:
        """Frees and forgets all pages: sequences will be computed again, except those in
        ``without``.

        Depends on no earlier state but the list of sequences.
        """
        running = self.running
        waiting = [*self.waiting]
        resting = {sequence for sequence in running if sequence.remaining == 0}
        for pages in (self.pool, self.prefix, self.windows):
            pages.clear()
        self.running = []
        self.waiting = FairQueue()
        self.broken = False
        self.subject = None
        self.suspended = (self.suspended | resting).difference(without)
        for sequence in without:
            sequence.number = -1
        for sequence in (*running, *waiting):
            sequence.forget_pages()
            if sequence not in without and sequence not in resting:
                self.waiting.add(sequence)
        for sequence in (*self.waiting, *self.suspended):
            self.released(sequence)

    def _take_out(self, sequence: Sequence) -> bool:
        """Removes a sequence from its queue; True where it was running."""
        if sequence in self.running:
            self.running.remove(sequence)
            return True
        if sequence in self.suspended:
            self.suspended.remove(sequence)
        else:
            self.waiting.remove(sequence)
        return False

    @_atomic
    def branch(
        self,
        sequences: Seq[Sequence],
        parents: Seq[int],
        tokens: Seq[int],
        copy: Callable[[int, int], None],
    ) -> None:
        """Sequence i goes on as sequence ``parents[i]`` with one token of ``tokens`` more; all
        rest, or wait, or are new.

        Full pages are shared. The page that is written next is copied for all but one of those who
        go on with it; where there is none to copy to, its tokens are read again.
        """
        before = [
            (sequence.ids, sequence.pages, sequence.computed, sequence.evicted_pages)
            for sequence in sequences
        ]
        heirs = set[int]()
        for sequence, parent, token in zip(sequences, parents, tokens, strict=True):
            if sequence.number < 0:
                sequence.number = next(self._numbers)
                sequence.started = True
            else:
                self._take_out(sequence)
            ids, pages, computed, evicted = before[parent]
            shared_pages = len(pages) if parent not in heirs else computed // self.size
            heirs.add(parent)
            all_shared = shared_pages == len(pages)
            sequence.ids = [*ids, token]
            sequence.computed = computed if all_shared else shared_pages * self.size
            self._share(sequence, pages[:shared_pages], evicted)
        for _, pages, _, evicted in before:
            self._give(pages, evicted)
        for sequence, parent in zip(sequences, parents, strict=True):
            _, pages, computed, _ = before[parent]
            if sequence.computed < computed and self._available:
                self._take(sequence)
                copy(pages[-1], sequence.pages[-1])
                sequence.computed = computed
        for sequence in reversed(sequences):
            sees = sequence.evicted_pages <= self.windows.first(sequence.computed)
            if sequence.pages and sees and len(self.running) < self.max_num_seqs:
                self.running.append(sequence)
            else:
                self._release(sequence)
                self.waiting.add(sequence, first=True)
        self.running.sort(key=lambda sequence: sequence.number)

    @_atomic
    def plan(self) -> list[Chunk]:
        """The chunks of the next step, each sequence at most once; empty when nothing is to be
        done."""
        self.subject = None
        self._admit()
        chunks = list[Chunk]()
        tokens_left = self.budget
        generating = [sequence for sequence in self.running if sequence.remaining == 1]
        spare = tokens_left - len(generating)
        for sequence in generating:
            self.subject = sequence
            drafted = min(len(sequence.draft), max(0, spare))
            if self._add_chunk(sequence, 1, drafted, chunks):
                tokens_left -= 1 + drafted
                spare -= drafted
        self.subject = None
        reading = [sequence for sequence in self.running if sequence.remaining > 1]
        for sequence in self._round_robin(reading):
            self.subject = sequence
            count = min(tokens_left, sequence.remaining)
            unsplit = min(max(self.first, sequence.unsplit), sequence.remaining)
            starts = sequence.computed > 0 or count >= unsplit
            if count > 0 and starts and self._add_chunk(sequence, count, 0, chunks):
                tokens_left -= count
        return chunks

    def _add_chunk(self, sequence: Sequence, count: int, drafted: int, chunks: list[Chunk]) -> bool:
        """Plans the next ``count`` tokens of a sequence and guesses after them, where there are
        pages for them."""
        start = sequence.computed
        fits = self._reserve(sequence, start + count + drafted, chunks)
        if fits:
            ids = sequence.ids[start : start + count] + sequence.draft[:drafted]
            chunks.append(Chunk(sequence, start, ids, drafted, count == sequence.remaining))
        return fits

    @_atomic
    def done(self, chunk: Chunk) -> None:
        """Records that a chunk was computed and its ``accepted`` guesses were right."""
        sequence = chunk.sequence
        before = sequence.computed // self.size
        sequence.computed = chunk.start + len(chunk.tokens) - chunk.drafted + chunk.accepted
        sequence.draft = []
        if sequence.computed // self.size > before and self._shares:
            self.prefix.keep(
                sequence.cache_key, sequence.ids[: sequence.computed], sequence.pages, before
            )
        evicted = self.windows.first(sequence.computed)
        self.windows.give(sequence.pages[sequence.evicted_pages : evicted])
        sequence.evicted_pages = evicted

    @property
    def _shares(self) -> bool:
        """True where a page depends on no later token."""
        return self.first <= self.size

    def _round_robin(self, sequences: list[Sequence]) -> list[Sequence]:
        """Sequences in turns between clients, beginning with another client every time."""
        clients: dict[str, deque[Sequence]] = {}
        for sequence in sequences:
            clients.setdefault(sequence.client, deque()).append(sequence)
        queues = [*clients.values()]
        start = next(self._turn) % max(1, len(queues))
        queues = queues[start:] + queues[:start]
        rounds = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        return [sequence for sequence in rounds if sequence is not None]

    def _admit(self) -> None:
        """Admits waiting sequences while there are places, and pages for all their tokens."""
        while len(self.waiting):
            load = Counter(sequence.client for sequence in self.running)
            self.subject = sequence = self.waiting.peek(load)
            assert sequence is not None
            allocation = (
                self._find_pages(sequence) if len(self.running) < self.max_num_seqs else None
            )
            if allocation is None:
                if self._suspend() or self._preempt_for_fairness(sequence.client, load):
                    continue
                return
            pages, sequence.computed = allocation
            fork_parent = sequence.fork_parent
            sequence.fork_parent = None
            self.waiting.pop(load)
            self._share(sequence, pages, self.windows.first(sequence.computed))
            if sequence.computed % self.size and fork_parent is not None and self.copy is not None:
                self._take(sequence)
                self.copy(fork_parent.pages[len(pages)], sequence.pages[-1])
            if not sequence.started:
                sequence.started = True
                sequence.cached = sequence.computed
            self.running.append(sequence)
            self.running.sort(key=lambda sequence: sequence.number)

    def _find_pages(self, sequence: Sequence) -> tuple[list[int], int] | None:
        """Pages that hold the beginning of a sequence, and how much of it is computed; None where
        there is no room for all its tokens."""
        limit = len(sequence.ids) - 1
        if sequence.recompute_from is not None:
            limit = min(limit, sequence.recompute_from)
        pages = self.prefix.find(sequence.cache_key, sequence.ids[:limit]) if self._shares else []
        pages = pages[: self.windows.fits(pages)]
        computed = len(pages) * self.size
        parent = sequence.fork_parent
        if parent in self.running and self.copy is not None and parent.computed > computed:
            shared = min(limit, parent.computed)
            if parent.evicted_pages <= self.windows.first(shared):
                computed = shared
                pages = parent.pages[: shared // self.size]
        missing = -(-len(sequence.ids) // self.size) - len(pages)
        available = self.pool.available - sum(self.pool.users[page] == 0 for page in pages)
        end = min(len(sequence.ids), computed + self.budget)
        fits = missing <= available and self.windows.has_room(pages, computed, end)
        return (pages, computed) if fits else None

    def _reserve(self, sequence: Sequence, length: int, chunks: list[Chunk]) -> bool:
        """Takes pages for the first ``length`` tokens, from later sequences that are not planned
        yet; False where that fails for now."""
        busy = {chunk.sequence for chunk in chunks}
        if sequence not in self.running:
            return False
        for _ in range(-(-length // self.size) - len(sequence.pages)):
            while not self._available:
                if self._suspend():
                    continue
                load = Counter(sequence.client for sequence in self.running)
                idle = [candidate for candidate in self.running if candidate not in busy]
                last = max(idle, key=lambda candidate: (load[candidate.client], candidate.number))
                if last is sequence and busy:
                    return False  # the planned ones go on, and end
                self.subject = last
                self.preempt(last)
                if last is sequence:
                    return False
            self.subject = sequence
            self._take(sequence)
        return True

    def _preempt_for_fairness(self, client: str, load: Mapping[str, int]) -> bool:
        """Preempts the newest sequence of the client with the most for a client that has at least
        two fewer."""
        greediest = max(load, key=load.__getitem__, default=client)
        if load.get(greediest, 0) - load.get(client, 0) < 2:
            return False
        running = reversed(self.running)
        newest = next(item for item in running if item.client == greediest)
        subject, self.subject = self.subject, newest  # a fault meanwhile is its own
        self.preempt(newest)
        self.subject = subject
        return True

    def _suspend(self) -> bool:
        """Frees the pages of the newest sequence that rests: it is not computed before its
        ``branch``."""
        resting = next((item for item in reversed(self.running) if item.remaining == 0), None)
        if resting is not None:
            subject = self.subject
            self.subject = resting
            self.preempt(resting)
            self.subject = subject
        return resting is not None

    def preempt(self, sequence: Sequence) -> None:
        """Moves a running sequence back to the queue, before its client's others; generated tokens
        stay, its pages do not. One that rests is suspended."""
        rests = sequence.remaining == 0
        self.running.remove(sequence)
        self._release(sequence)
        if rests:
            self.suspended.add(sequence)
        else:
            self.waiting.add(sequence, first=True)
        self.preempted += 1

    def _release(self, sequence: Sequence) -> None:
        self._give(sequence.pages, sequence.evicted_pages)
        sequence.forget_pages()
        self.released(sequence)

    @property
    def _available(self) -> bool:
        """True where one more page can be taken."""
        return self.pool.available > 0 and self.windows.available > 0

    def _take(self, sequence: Sequence) -> None:
        sequence.pages.append(self.pool.take())
        self.windows.take(sequence.pages[-1])

    def _share(self, sequence: Sequence, pages: Seq[int], evicted: int) -> None:
        """Gives a sequence pages of others; layers with windows need none of the first
        ``evicted``."""
        sequence.pages = [*pages]
        sequence.evicted_pages = evicted
        for page in pages:
            self.pool.share(page)
        self.windows.share(pages[evicted:])

    def _give(self, pages: Seq[int], evicted: int) -> None:
        """Frees pages, the last first: a prefix stays cached the longest."""
        self.windows.give(pages[evicted:][::-1])
        self.pool.give(reversed(pages))

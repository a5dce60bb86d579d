"""Choice of the tokens that the next step computes, and of the pages that hold their keys and values, by lists and
numbers alone: no tensors, no threads.

    add --> waiting --admit--> running --plan--> chunks --(the runner)--> done --> drop
               ^                  |                        all computed: it rests until ``branch``, or is suspended
               +-----preempt------+      the newest gives its pages back and is computed again later

One budget of tokens a step: sequences that generate come first (a token each, and its draft). The
remaining budget goes to prompts in chunks, in turns between clients, the oldest of each first.

    free --take--> used (by one sequence or several) --give, the last one--> free, or cached where
    its contents are known
      ^                          ^                                                   |
      |                          +---------------- share: found again ---------------+
      +------------------------------ taken again: the least recently used of them --+

``PrefixCache`` finds full pages by what they hold, so that prompts which begin alike are read once.
A page is known by the page before it and its own tokens: a key of the table is (that page's number
in the chain, the tokens), so a page is found by a hash and believed by comparing its tokens and, by
induction, all that stand before.

``Windows`` are pages of layers with sliding windows: a sequence keeps those alone that a token to
come still sees.

    pages          7  2  9  4  5      of layers that see the full sequence
    window pages   -  -  -  1  0      of layers with windows: the first three were freed

A window page is taken with its page and freed before it. While there is room, unused ones are kept
for prompts that begin alike, as pages are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from .sequence import Sequence, SequenceChunk

SCORED_WEIGHT = 4  # a token whose logits are needed takes as long as so many others


class OutOfPages(Exception):
    """Every page is in use."""


class PagePool:
    """Pages 0 to ``count`` - 1 with how many sequences use each: free + cached + used = all, after
    every call.

    ``forget`` is called with a cached page that is taken for something else.
    """

    def __init__(self, count: int, forget: Callable[[int], None] = lambda page: None) -> None:
        self.users = [0] * count
        self.forget = forget
        self._free: list[int] = []
        # of no user, the least recently used first
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._known: set[int] = set()  # pages whose contents somebody may look for
        self.clear()

    def clear(self) -> None:
        """All pages are free, and nothing is known of any."""
        count = len(self.users)
        self.users[:], self._free[:] = [0] * count, range(count - 1, -1, -1)
        self._cached.clear()
        self._known.clear()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        """Number of pages without a user whose contents are kept until the page is needed."""
        return len(self._cached)

    @property
    def in_use(self) -> int:
        return len(self.users) - self.free - self.cached

    @property
    def available(self) -> int:
        return self.free + self.cached

    def take(self) -> int:
        """A page for one user; OutOfPages where all are in use."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page = next(iter(self._cached))
            del self._cached[page]
            self._known.discard(page)
            self.forget(page)
        else:
            raise OutOfPages
        self.users[page] = 1
        return page

    def share(self, page: int) -> None:
        """One user more of a page that is in use or cached."""
        self._cached.pop(page, None)
        self.users[page] += 1

    def give(self, pages: Iterable[int]) -> None:
        """One user less of each; the first of them are kept the shortest once nobody uses them."""
        for page in pages:
            self.users[page] -= 1
            assert self.users[page] >= 0, f"page {page} was given back twice"
            if self.users[page] == 0:
                if page in self._known:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def know(self, page: int) -> None:
        """Marks a page in use whose contents can be found again: it will be cached rather than
        free."""
        self._known.add(page)

    def knows(self, page: int) -> bool:
        return page in self._known

    def drop(self, page: int) -> None:
        """Frees a cached page."""
        del self._cached[page]
        self._known.discard(page)
        self._free.append(page)


class PrefixCache:
    """The table; pages that nobody uses any more stay in it until ``pool`` needs them."""

    def __init__(self, pool: PagePool, size: int) -> None:
        self.pool = pool
        self.size = size
        # -> page, its number in the chain
        self._links: dict[tuple[Hashable, tuple[int, ...]], tuple[int, int]] = {}
        self._keys: dict[int, tuple[Hashable, tuple[int, ...]]] = {}  # by page
        # never used twice: what followed a forgotten page cannot be found
        self._numbers = itertools.count()
        pool.forget = self._forget

    def find(self, root: Hashable, tokens: Seq[int]) -> list[int]:
        """The pages that hold the beginning of ``tokens`` under ``root`` (what else they depend
        on); not shared yet."""
        pages = list[int]()
        before = root
        for start in range(0, len(tokens) - self.size + 1, self.size):
            link = self._links.get((before, tuple(tokens[start : start + self.size])))
            if link is None:
                break
            page = link[0]
            before = ("page", link[1])
            pages.append(page)
        return pages

    def keep(self, root: Hashable, tokens: Seq[int], pages: Seq[int], since: int = 0) -> None:
        """``pages`` hold the beginning of ``tokens``; what is there already stays, and the first
        ``since`` are there.

        Where another page holds the same, the chain goes on from that one.
        """
        before = root
        for place in range(min(len(pages), len(tokens) // self.size)):
            key = (before, tuple(tokens[place * self.size : (place + 1) * self.size]))
            if key not in self._links and place >= since and pages[place] not in self._keys:
                self._links[key] = (pages[place], next(self._numbers))
                self._keys[pages[place]] = key
                self.pool.know(pages[place])
            if key not in self._links:
                return
            before = ("page", self._links[key][1])

    def clear(self) -> None:
        """Nothing is found any more."""
        self._links.clear()
        self._keys.clear()

    def _forget(self, page: int) -> None:
        del self._links[self._keys.pop(page)]


class Windows:
    """``count`` window pages for pages of ``size`` tokens of ``pages``; a token sees ``span``
    tokens at most, itself included.

    Without a ``span`` there are no such layers, and nothing is done.
    """

    def __init__(self, pages: PagePool, size: int, span: int | None = None, count: int = 0) -> None:
        self.pages = pages
        self.size = size
        self.span = span
        self.pool = PagePool(count, self._forget)
        self.part_of: dict[int, int] = {}  # by page, in use or cached
        self._page_of: dict[int, int] = {}  # by window page

    @property
    def available(self) -> float:
        """Number of window pages that ``take`` can give."""
        return math.inf if self.span is None else self.pool.available

    def first(self, computed: int) -> int:
        """The first page that is seen by the token in this place, and so by any that follow."""
        return 0 if self.span is None else max(0, computed + 1 - self.span) // self.size

    def take(self, page: int) -> None:
        """Takes a window page for a page taken just now; one kept of its former contents is
        dropped."""
        if self.span is None:
            return
        if (old := self.part_of.pop(page, None)) is not None:
            del self._page_of[old]
            self.pool.drop(old)
        self.part_of[page] = window_page = self.pool.take()
        self._page_of[window_page] = page

    def share(self, pages: Seq[int]) -> None:
        """Adds a user to the window pages of these pages, which all have one."""
        for page in pages if self.span is not None else ():
            self.pool.share(self.part_of[page])

    def give(self, pages: Seq[int]) -> None:
        """Removes a user from the window pages of these pages."""
        for page in pages if self.span is not None else ():
            window_page = self.part_of[page]
            if self.pages.knows(page):
                self.pool.know(window_page)
            self.pool.give([window_page])
            if not self.pool.users[window_page] and not self.pool.knows(window_page):
                self._forget(window_page)

    def covers(self, pages: Seq[int], computed: int) -> bool:
        """True where a sequence whose first ``computed`` tokens are in these pages can go on."""
        visible = pages[self.first(computed) : -(-computed // self.size)]
        return self.span is None or all(page in self.part_of for page in visible)

    def fits(self, pages: Seq[int]) -> int:
        """Number of these full pages, at most, that a sequence can start with."""
        return next(n for n in range(len(pages), -1, -1) if self.covers(pages, n * self.size))

    def has_room(self, pages: Seq[int], computed: int, length: int) -> bool:
        """True where a sequence that starts with these pages finds window pages up to place
        ``length``."""
        if self.span is None:
            return True
        idle = sum(
            self.pool.users[self.part_of[page]] == 0 for page in pages[self.first(computed) :]
        )
        return -(-length // self.size) - len(pages) <= self.pool.available - idle

    def clear(self) -> None:
        """Frees all window pages."""
        self.pool.clear()
        self.part_of.clear()
        self._page_of.clear()

    def _forget(self, window_page: int) -> None:
        del self.part_of[self._page_of.pop(window_page)]


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
    def plan(self) -> list[SequenceChunk]:
        """The chunks of the next step, each sequence at most once; empty when nothing is to be
        done."""
        self.subject = None
        self._admit()
        chunks = list[SequenceChunk]()
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
        for sequence in self._round_robin(reading) if reading else ():
            self.subject = sequence
            unsplit = min(max(self.first, sequence.unsplit), sequence.remaining)
            # a token that is scored or inspected costs its logits too
            weight = 1 if sequence.recompute_from is None else SCORED_WEIGHT
            count = min(max(tokens_left // weight, unsplit, 1), tokens_left, sequence.remaining)
            starts = sequence.computed > 0 or count >= unsplit
            if count > 0 and starts and self._add_chunk(sequence, count, 0, chunks):
                tokens_left -= min(count * weight, tokens_left)
        return chunks

    def _add_chunk(
        self, sequence: Sequence, count: int, drafted: int, chunks: list[SequenceChunk]
    ) -> bool:
        """Plans the next ``count`` tokens of a sequence and guesses after them, where there are
        pages for them."""
        start = sequence.computed
        fits = self._reserve(sequence, start + count + drafted, chunks)
        if fits:
            ids = sequence.ids[start : start + count] + sequence.draft[:drafted]
            chunks.append(SequenceChunk(sequence, start, ids, drafted, count == sequence.remaining))
        return fits

    @_atomic
    def done(self, chunk: SequenceChunk) -> None:
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

    def _reserve(self, sequence: Sequence, length: int, chunks: list[SequenceChunk]) -> bool:
        """Takes pages for the first ``length`` tokens, from later sequences that are not planned
        yet; False where that fails for now."""
        missing = -(-length // self.size) - len(sequence.pages)
        if missing <= 0:  # it is running: one that was preempted has no page
            return True
        busy = {chunk.sequence for chunk in chunks}
        if sequence not in self.running:
            return False
        for _ in range(missing):
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
        subject = self.subject
        self.subject = newest  # a fault meanwhile is its own
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

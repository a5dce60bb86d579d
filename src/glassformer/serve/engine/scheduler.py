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
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from .fair_queue import FairQueue
from .pages import PagePool
from .prefix import PrefixCache
from .windows import Windows


@dataclass(eq=False)
class TokenSequence:
    """A sequence of ``tokens`` (prompt and continuation), of which the first ``computed`` are in
    ``pages``.

    ``cache_key`` is what its keys depend on beside its tokens. From place ``recompute_from`` on
    cached pages are not reused (None: the last token alone is computed). The first ``unsplit``
    tokens go into one forward pass. ``fork_parent`` has the same prompt: its computed tokens, to
    the middle of a page, are copied while it still runs. Layers with windows have freed the first
    ``evicted_pages``. ``draft`` are guessed next tokens. ``cached`` tokens were found in the pages
    of others at admission. ``source`` are the encoder's ids, ``owner`` is the continuation that it
    is computed for, ``look`` records or edits it.
    """

    tokens: list[int]
    client: str = ""
    cache_key: Hashable = None
    recompute_from: int | None = None
    unsplit: int = 0
    source: tuple[int, ...] | None = None
    owner: Any = None
    look: Any = None
    fork_parent: TokenSequence | None = None
    number: int = -1  # in the order of arrival
    computed: int = 0
    cached: int = 0
    started: bool = False
    pages: list[int] = field(default_factory=list)
    evicted_pages: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        """Number of tokens that are not in pages yet."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, eq=False)
class Chunk:
    """Tokens of one sequence for the next forward pass, from place ``start`` on, the last
    ``drafted`` of them guesses.

    ``finishes``: the next token can be sampled after it.
    """

    sequence: TokenSequence
    start: int
    tokens: list[int]
    drafted: int
    finishes: bool


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Scheduler")


def _atomic(change: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a change of a scheduler that must happen completely: one that fails on the way
    leaves it ``broken``."""

    @functools.wraps(change)
    def wrapper(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        before, self.broken = self.broken, True
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
        released: Callable[[TokenSequence], None] = lambda sequence: None,
        copy: Callable[[int, int], None] | None = None,
        windows: Windows | None = None,
    ) -> None:
        self.pool, self.size, self.budget, self.max_num_seqs, self.first = (
            pool,
            size,
            max(budget, first, max_num_seqs),
            max_num_seqs,
            first,
        )
        self.released, self.copy, self.windows = released, copy, windows or Windows(pool, size)
        self.prefix = PrefixCache(pool, size)
        self.waiting = FairQueue[TokenSequence]()
        self.running: list[TokenSequence] = []  # the oldest first
        self.suspended: set[TokenSequence] = set()  # those that rest without pages
        self.preempted = 0
        self.broken = False
        self.subject: TokenSequence | None = None
        self._numbers = itertools.count()
        self._turn = itertools.count()

    @_atomic
    def add(self, sequence: TokenSequence, first: bool = False) -> None:
        """Queues a sequence behind those of its client, or before them."""
        sequence.number = next(self._numbers)
        self.waiting.add(sequence, first)

    @_atomic
    def drop(self, sequence: TokenSequence) -> None:
        """Ends a sequence: its pages are freed, full ones stay in the prefix cache.

        Harmless for one that is not scheduled.
        """
        if sequence.number >= 0 and self._take_out(sequence):
            self._release(sequence)
        sequence.number = -1

    def restart(self, without: Collection[TokenSequence]) -> None:
        """Frees and forgets all pages: sequences will be computed again, except those in
        ``without``.

        Depends on no earlier state but the list of sequences.
        """
        running, waiting = self.running, [*self.waiting]
        resting = {sequence for sequence in running if sequence.remaining == 0}
        for pages in (self.pool, self.prefix, self.windows):
            pages.clear()
        self.running, self.waiting, self.broken, self.subject = [], FairQueue(), False, None
        self.suspended = (self.suspended | resting).difference(without)
        for sequence in without:
            sequence.number = -1
        for sequence in (*running, *waiting):
            sequence.pages, sequence.computed, sequence.evicted_pages, sequence.draft = [], 0, 0, []
            if sequence not in without and sequence not in resting:
                self.waiting.add(sequence)
        for sequence in (*self.waiting, *self.suspended):
            self.released(sequence)

    def _take_out(self, sequence: TokenSequence) -> bool:
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
        sequences: Sequence[TokenSequence],
        parents: Sequence[int],
        tokens: Sequence[int],
        copy: Callable[[int, int], None],
    ) -> None:
        """Sequence i goes on as sequence ``parents[i]`` with one token of ``tokens`` more; all
        rest, or wait, or are new.

        Full pages are shared. The page that is written next is copied for all but one of those who
        go on with it; where there is none to copy to, its tokens are read again.
        """
        before = [
            (sequence.tokens, sequence.pages, sequence.computed, sequence.evicted_pages)
            for sequence in sequences
        ]
        heirs = set[int]()
        for sequence, parent, token in zip(sequences, parents, tokens, strict=True):
            if sequence.number < 0:
                sequence.number, sequence.started = next(self._numbers), True
            else:
                self._take_out(sequence)
            ids, pages, computed, evicted = before[parent]
            shared_pages = len(pages) if parent not in heirs else computed // self.size
            heirs.add(parent)
            sequence.tokens, sequence.computed = (
                [*ids, token],
                computed if shared_pages == len(pages) else shared_pages * self.size,
            )
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
        chunks, tokens_left = list[Chunk](), self.budget
        generating = [sequence for sequence in self.running if sequence.remaining == 1]
        spare = tokens_left - len(generating)
        for sequence in generating:
            draft = sequence.draft[: max(0, spare)]
            self.subject = sequence
            if self._reserve(sequence, len(sequence.tokens) + len(draft), chunks):
                chunks.append(
                    Chunk(
                        sequence,
                        sequence.computed,
                        sequence.tokens[sequence.computed :] + draft,
                        len(draft),
                        True,
                    )
                )
                tokens_left -= 1 + len(draft)
                spare -= len(draft)
        self.subject = None
        for sequence in self._round_robin(
            [sequence for sequence in self.running if sequence.remaining > 1]
        ):
            count = min(tokens_left, sequence.remaining)
            if sequence.computed == 0 and count < min(
                max(self.first, sequence.unsplit), sequence.remaining
            ):
                continue
            self.subject = sequence
            if (
                count > 0
                and sequence in self.running
                and self._reserve(sequence, sequence.computed + count, chunks)
            ):
                ids = sequence.tokens[sequence.computed : sequence.computed + count]
                chunks.append(
                    Chunk(sequence, sequence.computed, ids, 0, count == sequence.remaining)
                )
                tokens_left -= count
        return chunks

    @_atomic
    def done(self, chunk: Chunk, accepted: int = 0) -> None:
        """Records that a chunk was computed and its first ``accepted`` guesses were right."""
        sequence = chunk.sequence
        before = sequence.computed // self.size
        sequence.computed = chunk.start + len(chunk.tokens) - chunk.drafted + accepted
        sequence.draft = []
        if sequence.computed // self.size > before and self._shares:
            self.prefix.keep(
                sequence.cache_key, sequence.tokens[: sequence.computed], sequence.pages, before
            )
        evicted = self.windows.first(sequence.computed)
        self.windows.give(sequence.pages[sequence.evicted_pages : evicted])
        sequence.evicted_pages = evicted

    @property
    def _shares(self) -> bool:
        """True where a page depends on no later token."""
        return self.first <= self.size

    def _round_robin(self, sequences: list[TokenSequence]) -> list[TokenSequence]:
        """Sequences in turns between clients, beginning with another client every time."""
        clients: dict[str, deque[TokenSequence]] = {}
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
            if len(self.running) >= self.max_num_seqs:
                if self._suspend() or self._preempt_for_fairness(sequence.client, load):
                    continue
                return
            limit = (
                len(sequence.tokens) - 1
                if sequence.recompute_from is None
                else min(sequence.recompute_from, len(sequence.tokens) - 1)
            )
            pages = (
                self.prefix.find(sequence.cache_key, sequence.tokens[:limit])
                if self._shares
                else []
            )
            pages = pages[: self.windows.fits(pages)]
            computed, fork_parent = len(pages) * self.size, sequence.fork_parent
            if (
                fork_parent is not None
                and fork_parent in self.running
                and self.copy is not None
                and fork_parent.computed > computed
            ):
                shared = min(limit, fork_parent.computed)
                if fork_parent.evicted_pages <= self.windows.first(shared):
                    computed, pages = shared, fork_parent.pages[: shared // self.size]
            missing = -(-len(sequence.tokens) // self.size) - len(pages)
            fits = self.windows.has_room(
                pages, computed, min(len(sequence.tokens), computed + self.budget)
            )
            if (
                missing > self.pool.available - sum(self.pool.users[page] == 0 for page in pages)
                or not fits
            ):
                if self._suspend() or self._preempt_for_fairness(sequence.client, load):
                    continue
                return
            self.waiting.pop(load)
            sequence.computed, sequence.fork_parent = computed, None
            self._share(sequence, pages, self.windows.first(computed))
            if computed % self.size and fork_parent is not None and self.copy is not None:
                self._take(sequence)
                self.copy(fork_parent.pages[len(pages)], sequence.pages[-1])
            if not sequence.started:
                sequence.started, sequence.cached = True, sequence.computed
            self.running.append(sequence)
            self.running.sort(key=lambda sequence: sequence.number)

    def _reserve(self, sequence: TokenSequence, length: int, chunks: list[Chunk]) -> bool:
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
        is_fair = load.get(greediest, 0) - load.get(client, 0) < 2
        if not is_fair:
            newest = next(
                sequence for sequence in reversed(self.running) if sequence.client == greediest
            )
            subject, self.subject = self.subject, newest
            self.preempt(newest)
            self.subject = subject
        return not is_fair

    def _suspend(self) -> bool:
        """Frees the pages of the newest sequence that rests: it is not computed before its
        ``branch``."""
        resting = next(
            (sequence for sequence in reversed(self.running) if sequence.remaining == 0), None
        )
        if resting is not None:
            subject, self.subject = self.subject, resting
            self.running.remove(resting)
            self._release(resting)
            self.suspended.add(resting)
            self.preempted += 1
            self.subject = subject
        return resting is not None

    def preempt(self, sequence: TokenSequence) -> None:
        """Moves a running sequence back to the queue, before its client's others; generated tokens
        stay, its pages do not."""
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.add(sequence, first=True)
        self.preempted += 1

    def _release(self, sequence: TokenSequence) -> None:
        self._give(sequence.pages, sequence.evicted_pages)
        sequence.pages, sequence.computed, sequence.evicted_pages, sequence.draft = [], 0, 0, []
        self.released(sequence)

    @property
    def _available(self) -> bool:
        """True where one more page can be taken."""
        return self.pool.available > 0 and self.windows.available > 0

    def _take(self, sequence: TokenSequence) -> None:
        sequence.pages.append(self.pool.take())
        self.windows.take(sequence.pages[-1])

    def _share(self, sequence: TokenSequence, pages: Sequence[int], evicted: int) -> None:
        """Gives a sequence pages of others; layers with windows need none of the first
        ``evicted``."""
        sequence.pages, sequence.evicted_pages = [*pages], evicted
        for page in pages:
            self.pool.share(page)
        self.windows.share(pages[evicted:])

    def _give(self, pages: Sequence[int], evicted: int) -> None:
        """Frees pages, the last first: a prefix stays cached the longest."""
        self.windows.give(pages[evicted:][::-1])
        self.pool.give(reversed(pages))

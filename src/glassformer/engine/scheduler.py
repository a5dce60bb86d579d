"""Which tokens of which texts the next step reads. Lists and numbers alone: no tensors, no threads.

    add --> waiting --admit--> running --plan--> chunks --(the runner)--> done --> drop
               ^                  |                        all read: it rests until ``branch``, or is parked
               +-----preempt------+      the newest gives its pages back and is read again later

One budget of tokens a step: texts that generate come first (a token each, and its draft), the rest
goes to prompts in chunks, in turns between clients, the oldest of each first.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from .pages import PagePool
from .prefix import Prefix
from .turns import Turns
from .windows import Windows


@dataclass(eq=False)
class Text:
    """A text that grows: its ``tokens`` (prompt and continuation), of which the first ``computed``
    are in ``pages``.

    ``root`` is what its keys depend on beside its tokens. From place ``own`` on it reads all
    itself, whatever pages hold (None: its last token alone). The first ``whole`` tokens are read in
    one go. ``twin`` begins alike: what that has computed, to the middle of a page, is taken over
    while it still runs. Of its first ``gone`` pages layers with windows hold nothing any more.
    ``draft`` are guesses of what follows. ``cached`` tokens were found in pages of others when it
    began. ``source`` is what an encoder reads beside it, ``owner`` whoever has it read and ``look``
    whoever looks inside.
    """

    tokens: list[int]
    client: str = ""
    root: Hashable = None
    own: int | None = None
    whole: int = 0
    source: tuple[int, ...] | None = None
    owner: Any = None
    look: Any = None
    twin: Text | None = None
    number: int = -1  # in the order of arrival
    computed: int = 0
    cached: int = 0
    started: bool = False
    pages: list[int] = field(default_factory=list)
    gone: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        """Tokens that are not in pages yet."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, eq=False)
class Chunk:
    """Tokens of one text to be read now: from place ``start``, the last ``drafted`` of them
    guesses.

    ``finishes``: the next token can be drawn after it.
    """

    text: Text
    start: int
    tokens: list[int]
    drafted: int
    finishes: bool


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Scheduler")


def _whole(change: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A change of a scheduler that happens as a whole: one that fails on the way leaves it
    ``broken``."""

    @functools.wraps(change)
    def changed(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        before, self.broken = self.broken, True
        result = change(self, *args, **kwargs)
        self.broken = before
        return result

    return changed  # type: ignore[return-value]


class Scheduler:
    """Plans steps over the pages of ``pool``, which must hold one text of the greatest length.

    ``budget`` is the most tokens a step, ``most`` the most texts at once; the ``first`` tokens of a
    text are read in one go. ``released`` is told of a text that gives its pages back, ``copy`` of a
    page that is to be copied to another (None: none can be); ``windows`` is what layers with
    windows hold of the pages.

    Clients have equal shares of the places and pages: where one that waits has at least two texts
    fewer in them than another, that one's newest gives way. After a change that failed on the way
    it is ``broken`` until ``restart``; ``subject`` is the text that the change was at.
    """

    def __init__(
        self,
        pool: PagePool,
        size: int,
        *,
        budget: int,
        most: int,
        first: int = 0,
        released: Callable[[Text], None] = lambda text: None,
        copy: Callable[[int, int], None] | None = None,
        windows: Windows | None = None,
    ) -> None:
        self.pool, self.size, self.budget, self.most, self.first = (
            pool,
            size,
            max(budget, first, most),
            most,
            first,
        )
        self.released, self.copy, self.windows = released, copy, windows or Windows(pool, size)
        self.prefix = Prefix(pool, size)
        self.waiting = Turns[Text]()
        self.running: list[Text] = []  # the oldest first
        self.parked: set[Text] = set()  # those that rest without pages
        self.preempted = 0
        self.broken = False
        self.subject: Text | None = None
        self._numbers = itertools.count()
        self._turn = itertools.count()

    @_whole
    def add(self, text: Text, first: bool = False) -> None:
        """One more text, behind those of its client or before them."""
        text.number = next(self._numbers)
        self.waiting.add(text, first)

    @_whole
    def drop(self, text: Text) -> None:
        """It has ended, or nobody wants it any more: its pages are given back, full ones stay
        known.

        Harmless for one that is not there.
        """
        if text.number >= 0 and self._take_out(text):
            self._release(text)
        text.number = -1

    def restart(self, without: Collection[Text]) -> None:
        """Give all pages back and forget what they hold: texts will be read again, but for those
        that are not to be.

        It asks nothing of what was there before but which texts there are.
        """
        running, waiting = self.running, [*self.waiting]
        resting = {text for text in running if text.remaining == 0}
        for pages in (self.pool, self.prefix, self.windows):
            pages.clear()
        self.running, self.waiting, self.broken, self.subject = [], Turns(), False, None
        self.parked = (self.parked | resting).difference(without)
        for text in without:
            text.number = -1
        for text in (*running, *waiting):
            text.pages, text.computed, text.gone, text.draft = [], 0, 0, []
            if text not in without and text not in resting:
                self.waiting.add(text)
        for text in (*self.waiting, *self.parked):
            self.released(text)

    def _take_out(self, text: Text) -> bool:
        """Out of where it stands; whether that was among the running."""
        if text in self.running:
            self.running.remove(text)
            return True
        if text in self.parked:
            self.parked.remove(text)
        else:
            self.waiting.remove(text)
        return False

    @_whole
    def branch(
        self,
        texts: Sequence[Text],
        parents: Sequence[int],
        tokens: Sequence[int],
        copy: Callable[[int, int], None],
    ) -> None:
        """Text i goes on as text ``parents[i]`` with one token of ``tokens`` more; all rest, or
        wait, or are new.

        Full pages are shared. The page that is written next is copied for all but one of those who
        go on with it; where there is none to copy to, its tokens are read again.
        """
        before = [(text.tokens, text.pages, text.computed, text.gone) for text in texts]
        heirs = set[int]()
        for text, parent, token in zip(texts, parents, tokens, strict=True):
            if text.number < 0:
                text.number, text.started = next(self._numbers), True
            else:
                self._take_out(text)
            read, pages, computed, gone = before[parent]
            mine = len(pages) if parent not in heirs else computed // self.size
            heirs.add(parent)
            text.tokens, text.computed = (
                [*read, token],
                computed if mine == len(pages) else mine * self.size,
            )
            self._share(text, pages[:mine], gone)
        for _, pages, _, gone in before:
            self._give(pages, gone)
        for text, parent in zip(texts, parents, strict=True):
            _, pages, computed, _ = before[parent]
            if text.computed < computed and self._available:
                self._take(text)
                copy(pages[-1], text.pages[-1])
                text.computed = computed
        for text in reversed(texts):
            sees = text.gone <= self.windows.first(text.computed)
            if text.pages and sees and len(self.running) < self.most:
                self.running.append(text)
            else:
                self._release(text)
                self.waiting.add(text, first=True)
        self.running.sort(key=lambda text: text.number)

    @_whole
    def plan(self) -> list[Chunk]:
        """The chunks of the next step, each text at most once; empty when nothing is to be done."""
        self.subject = None
        self._admit()
        chunks, left = list[Chunk](), self.budget
        generating = [text for text in self.running if text.remaining == 1]
        spare = left - len(generating)
        for text in generating:
            draft = text.draft[: max(0, spare)]
            self.subject = text
            if self._reserve(text, len(text.tokens) + len(draft), chunks):
                chunks.append(
                    Chunk(
                        text, text.computed, text.tokens[text.computed :] + draft, len(draft), True
                    )
                )
                left -= 1 + len(draft)
                spare -= len(draft)
        self.subject = None
        for text in self._in_turns([text for text in self.running if text.remaining > 1]):
            count = min(left, text.remaining)
            if text.computed == 0 and count < min(max(self.first, text.whole), text.remaining):
                continue
            self.subject = text
            if (
                count > 0
                and text in self.running
                and self._reserve(text, text.computed + count, chunks)
            ):
                read = text.tokens[text.computed : text.computed + count]
                chunks.append(Chunk(text, text.computed, read, 0, count == text.remaining))
                left -= count
        return chunks

    @_whole
    def done(self, chunk: Chunk, accepted: int = 0) -> None:
        """A chunk was read, and the first ``accepted`` of its guesses were right."""
        text = chunk.text
        before = text.computed // self.size
        text.computed = chunk.start + len(chunk.tokens) - chunk.drafted + accepted
        text.draft = []
        if text.computed // self.size > before and self._shares:
            self.prefix.keep(text.root, text.tokens[: text.computed], text.pages, before)
        gone = self.windows.first(text.computed)
        self.windows.give(text.pages[text.gone : gone])
        text.gone = gone

    @property
    def _shares(self) -> bool:
        """Whether a page depends on nothing that stands behind it."""
        return self.first <= self.size

    def _in_turns(self, texts: list[Text]) -> list[Text]:
        """A text of each client, then the next of each, beginning with another client every
        time."""
        clients: dict[str, deque[Text]] = {}
        for text in texts:
            clients.setdefault(text.client, deque()).append(text)
        queues = [*clients.values()]
        start = next(self._turn) % max(1, len(queues))
        queues = queues[start:] + queues[:start]
        rounds = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        return [text for text in rounds if text is not None]

    def _admit(self) -> None:
        """Let texts in whose turn it is while there are places, and pages for all that they are to
        read."""
        while len(self.waiting):
            load = Counter(text.client for text in self.running)
            self.subject = text = self.waiting.peek(load)
            assert text is not None
            if len(self.running) >= self.most:
                if self._park() or self._share_out(text.client, load):
                    continue
                return
            known = (
                len(text.tokens) - 1 if text.own is None else min(text.own, len(text.tokens) - 1)
            )
            found = self.prefix.find(text.root, text.tokens[:known]) if self._shares else []
            found = found[: self.windows.fits(found)]
            same, twin = len(found) * self.size, text.twin
            if (
                twin is not None
                and twin in self.running
                and self.copy is not None
                and twin.computed > same
            ):
                there = min(known, twin.computed)
                if twin.gone <= self.windows.first(there):
                    same, found = there, twin.pages[: there // self.size]
            missing = -(-len(text.tokens) // self.size) - len(found)
            fits = self.windows.room(found, same, min(len(text.tokens), same + self.budget))
            if (
                missing > self.pool.available - sum(self.pool.users[page] == 0 for page in found)
                or not fits
            ):
                if self._park() or self._share_out(text.client, load):
                    continue
                return
            self.waiting.pop(load)
            text.computed, text.twin = same, None
            self._share(text, found, self.windows.first(same))
            if same % self.size and twin is not None and self.copy is not None:
                self._take(text)
                self.copy(twin.pages[len(found)], text.pages[-1])
            if not text.started:
                text.started, text.cached = True, text.computed
            self.running.append(text)
            self.running.sort(key=lambda text: text.number)

    def _reserve(self, text: Text, length: int, chunks: list[Chunk]) -> bool:
        """Pages for the first ``length`` tokens, from those that came later and are not planned
        yet; False: not now."""
        busy = {chunk.text for chunk in chunks}
        if text not in self.running:
            return False
        for _ in range(-(-length // self.size) - len(text.pages)):
            while not self._available:
                if self._park():
                    continue
                load = Counter(text.client for text in self.running)
                idle = [other for other in self.running if other not in busy]
                last = max(idle, key=lambda other: (load[other.client], other.number))
                if last is text and busy:
                    return False  # the planned ones go on, and end
                self.subject = last
                self.preempt(last)
                if last is text:
                    return False
                self.subject = text
            self._take(text)
        return True

    def _share_out(self, client: str, load: Mapping[str, int]) -> bool:
        """Let the newest text of whoever has most give way to a client that has at least two
        fewer."""
        most = max(load, key=load.__getitem__, default=client)
        fair = load.get(most, 0) - load.get(client, 0) < 2
        if not fair:
            newest = next(text for text in reversed(self.running) if text.client == most)
            subject, self.subject = self.subject, newest
            self.preempt(newest)
            self.subject = subject
        return not fair

    def _park(self) -> bool:
        """Let the newest of those that rest do so without pages: it is not read before its
        ``branch``."""
        resting = next((text for text in reversed(self.running) if text.remaining == 0), None)
        if resting is not None:
            subject, self.subject = self.subject, resting
            self.running.remove(resting)
            self._release(resting)
            self.parked.add(resting)
            self.preempted += 1
            self.subject = subject
        return resting is not None

    def preempt(self, text: Text) -> None:
        """Back to the waiting ones, before its client's others; what was generated stays, its pages
        do not."""
        self.running.remove(text)
        self._release(text)
        self.waiting.add(text, first=True)
        self.preempted += 1

    def _release(self, text: Text) -> None:
        self._give(text.pages, text.gone)
        text.pages, text.computed, text.gone, text.draft = [], 0, 0, []
        self.released(text)

    @property
    def _available(self) -> bool:
        """Whether there is one page more."""
        return self.pool.available > 0 and self.windows.available > 0

    def _take(self, text: Text) -> None:
        """One page more for a text."""
        text.pages.append(self.pool.take())
        self.windows.take(text.pages[-1])

    def _share(self, text: Text, pages: Sequence[int], gone: int) -> None:
        """A text begins with pages of others; of the first ``gone`` layers with windows need
        nothing."""
        text.pages, text.gone = [*pages], gone
        for page in pages:
            self.pool.share(page)
        self.windows.share(pages[gone:])

    def _give(self, pages: Sequence[int], gone: int) -> None:
        """Pages back, the last first: a beginning is kept the longest."""
        self.windows.give(pages[gone:][::-1])
        self.pool.give(reversed(pages))

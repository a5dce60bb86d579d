"""Pages of keys and values: which are free, in use, or kept for a prompt that begins alike. Numbers
alone: no tensors.

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

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence


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

    def find(self, root: Hashable, tokens: Sequence[int]) -> list[int]:
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

    def keep(
        self, root: Hashable, tokens: Sequence[int], pages: Sequence[int], since: int = 0
    ) -> None:
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

    def share(self, pages: Sequence[int]) -> None:
        """Adds a user to the window pages of these pages, which all have one."""
        for page in pages if self.span is not None else ():
            self.pool.share(self.part_of[page])

    def give(self, pages: Sequence[int]) -> None:
        """Removes a user from the window pages of these pages."""
        for page in pages if self.span is not None else ():
            window_page = self.part_of[page]
            if self.pages.knows(page):
                self.pool.know(window_page)
            self.pool.give([window_page])
            if not self.pool.users[window_page] and not self.pool.knows(window_page):
                self._forget(window_page)

    def covers(self, pages: Sequence[int], computed: int) -> bool:
        """True where a sequence whose first ``computed`` tokens are in these pages can go on."""
        visible = pages[self.first(computed) : -(-computed // self.size)]
        return self.span is None or all(page in self.part_of for page in visible)

    def fits(self, pages: Sequence[int]) -> int:
        """Number of these full pages, at most, that a sequence can start with."""
        return next(n for n in range(len(pages), -1, -1) if self.covers(pages, n * self.size))

    def has_room(self, pages: Sequence[int], computed: int, length: int) -> bool:
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

"""Pages of layers with sliding windows: a sequence keeps those alone that a token to come still
sees. Numbers, no tensors.

    pages          7  2  9  4  5      of layers that see the full sequence
    window pages   -  -  -  1  0      of layers with windows: the first three were freed

A window page is taken with its page and freed before it. While there is room, unused ones are kept
for prompts that begin alike, as pages are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .pages import PagePool


class Windows:
    """``count`` window pages for pages of ``size`` tokens of ``pages``; a token sees ``span``
    tokens at most, itself included.

    Without a ``span`` there are no such layers, and nothing is done.
    """

    def __init__(self, pages: PagePool, size: int, span: int | None = None, count: int = 0) -> None:
        self.pages, self.size, self.span = pages, size, span
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

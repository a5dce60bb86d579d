"""What layers with windows hold of a text's pages: those alone that a token to come still sees.
Numbers, no tensors.

    pages   7  2  9  4  5      of layers that see all of the text
    parts   -  -  -  1  0      of layers with windows: the first three were given back

A part is taken with its page and given back before it; nobody's parts are kept for prompts that
begin alike for as long as there is room, as pages are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .pages import PagePool


class Windows:
    """``count`` parts for pages of ``size`` tokens of ``pages``; a token sees ``span`` tokens at
    most, itself included.

    Without a ``span`` there are no such layers, and nothing is done.
    """

    def __init__(self, pages: PagePool, size: int, span: int | None = None, count: int = 0) -> None:
        self.pages, self.size, self.span = pages, size, span
        self.pool = PagePool(count, self._forget)
        self.parts: dict[int, int] = {}  # by page, used and cached ones
        self._whose: dict[int, int] = {}  # the same, by part

    @property
    def available(self) -> float:
        """Parts that ``take`` can give."""
        return math.inf if self.span is None else self.pool.available

    def first(self, computed: int) -> int:
        """The first page that is seen by the token in this place, and so by any that follow."""
        return 0 if self.span is None else max(0, computed + 1 - self.span) // self.size

    def take(self, page: int) -> None:
        """A part for a page that was taken just now; what was kept of its former contents is
        dropped."""
        if self.span is None:
            return
        if (old := self.parts.pop(page, None)) is not None:
            del self._whose[old]
            self.pool.drop(old)
        self.parts[page] = part = self.pool.take()
        self._whose[part] = page

    def share(self, pages: Sequence[int]) -> None:
        """One user more of the parts of these pages, which are all there."""
        for page in pages if self.span is not None else ():
            self.pool.share(self.parts[page])

    def give(self, pages: Sequence[int]) -> None:
        """One user less of the parts of these pages."""
        for page in pages if self.span is not None else ():
            part = self.parts[page]
            if self.pages.knows(page):
                self.pool.know(part)
            self.pool.give([part])
            if not self.pool.users[part] and not self.pool.knows(part):
                self._forget(part)

    def covers(self, pages: Sequence[int], computed: int) -> bool:
        """Whether a text whose first ``computed`` tokens are in these pages can go on."""
        seen = pages[self.first(computed) : -(-computed // self.size)]
        return self.span is None or all(page in self.parts for page in seen)

    def fits(self, pages: Sequence[int]) -> int:
        """With how many of these full pages, at most, a text can begin."""
        return next(n for n in range(len(pages), -1, -1) if self.covers(pages, n * self.size))

    def room(self, pages: Sequence[int], computed: int, length: int) -> bool:
        """Whether a text that begins with these pages finds parts up to place ``length``."""
        if self.span is None:
            return True
        idle = sum(self.pool.users[self.parts[page]] == 0 for page in pages[self.first(computed) :])
        return -(-length // self.size) - len(pages) <= self.pool.available - idle

    def clear(self) -> None:
        """No page has a part."""
        self.pool.clear()
        self.parts.clear()
        self._whose.clear()

    def check(self) -> None:
        """AssertionError unless each part is in one state, those in use are of pages in use, and no
        other is known."""
        self.pool.check()
        assert {part: page for page, part in self.parts.items()} == self._whose
        assert all(
            self.pool.users[part] <= self.pages.users[page] for page, part in self.parts.items()
        )
        assert len(self.parts) == self.pool.used + self.pool.cached

    def _forget(self, part: int) -> None:
        del self.parts[self._whose.pop(part)]

"""Full pages by what they hold, so that prompts which begin alike are read once.

A page is known by the page before it and its own tokens: a key of the table is (that page's number
in the chain, the tokens), so a page is found by a hash and believed by comparing its tokens and, by
induction, all that stand before.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from .pages import PagePool


class PrefixCache:
    """The table; pages that nobody uses any more stay in it until ``pool`` needs them."""

    def __init__(self, pool: PagePool, size: int) -> None:
        self.pool, self.size = pool, size
        # -> page, its number in the chain
        self._links: dict[tuple[Hashable, tuple[int, ...]], tuple[int, int]] = {}
        self._keys: dict[int, tuple[Hashable, tuple[int, ...]]] = {}  # by page
        # never used twice: what followed a forgotten page cannot be found
        self._numbers = itertools.count()
        pool.forget = self._forget

    def find(self, root: Hashable, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the beginning of ``tokens`` under ``root`` (what else they depend
        on); not shared yet."""
        pages, before = list[int](), root
        for start in range(0, len(tokens) - self.size + 1, self.size):
            link = self._links.get((before, tuple(tokens[start : start + self.size])))
            if link is None:
                break
            page, before = link[0], ("page", link[1])
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

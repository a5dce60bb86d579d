"""Which pages of the cache are free, in use, or kept for a prompt that begins alike. Numbers alone:
no tensors.

free --take--> used (by one sequence or several) --give, the last one--> free, or cached where its
contents are known
  ^                          ^                                                   |
  |                          +---------------- share: found again ---------------+
  +------------------------------ taken again: the least recently used of them --+
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


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

    def recount(self, holders: Iterable[Sequence[int]]) -> None:
        """Frees pages of which more users are counted than ``holders`` list: an error came between
        the count and the list."""
        users = Counter(page for pages in holders for page in pages)
        for page, count in enumerate(self.users):
            if count > users[page]:
                self.users[page] = users[page] + 1
                self.give([page])

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

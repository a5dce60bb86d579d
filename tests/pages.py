"""Sequences without an engine, and what must be true of pages between two steps."""

from __future__ import annotations

from glassformer.serve.engine import Request, RequestHandle
from glassformer.serve.engine.sequence import Sequence


def sequence_of(ids, client="", **fields):
    """A sequence of a request of its own that nobody submitted."""
    sequence = Sequence(RequestHandle(Request(ids, client=client), lambda handle: None))
    vars(sequence).update(fields)
    return sequence


def ask(engine, *texts, **options):
    """The result of a request that nothing else is begun beside."""
    return engine.submit(Request(*texts, **options)).result()


def check_pages(pool):
    """AssertionError unless every page is in exactly one of the three states."""
    in_use = {page for page, users in enumerate(pool.users) if users}
    free = set(pool._free)
    cached = set(pool._cached)
    assert len(free) == len(pool._free)
    assert not (free & cached or free & in_use or cached & in_use)
    assert len(free) + len(cached) + len(in_use) == len(pool.users)
    assert cached <= pool._known


def check_windows(windows):
    """AssertionError unless each window page is in one state, those in use are of pages in use, and
    no other is known."""
    check_pages(windows.pool)
    assert {window_page: page for page, window_page in windows.part_of.items()} == windows._page_of
    assert all(
        windows.pool.users[window_page] <= windows.pages.users[page]
        for page, window_page in windows.part_of.items()
    )
    assert len(windows.part_of) == windows.pool.in_use + windows.pool.cached

"""Pools of processes that every test of this room may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from many import Processes


@pytest.fixture(scope="session")
def two() -> Iterator[Processes]:
    """Two processes that stay up."""
    pool = Processes(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Processes]:
    """Four processes that stay up; for tests marked slow."""
    pool = Processes(4)
    yield pool
    pool.close()

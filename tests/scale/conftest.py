"""Pools of processes that every test of this room may ask for."""

from __future__ import annotations

import contextlib

import pytest
import torch

from many import Processes


@pytest.fixture(autouse=True)
def one_thread():
    """Here as in the pools: with another number of threads kernels add up in another order
    (docs/scale.md)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Not for the whole session: each group that their tests make has a thread that polls, and 384 of
# them take half a core.
@pytest.fixture(scope="package")
def two():
    """Two processes that stay up as long as this room's tests run."""
    with contextlib.closing(Processes(2)) as pool:
        yield pool


@pytest.fixture(scope="module")
def four():
    """Four processes that stay up; for tests marked slow."""
    with contextlib.closing(Processes(4)) as pool:
        yield pool

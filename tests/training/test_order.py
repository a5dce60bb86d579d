"""The order of rows: a permutation either way, computed for as many rows as there are, in no
memory."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
import torch

from glassformer.core.training import batches as training_batches
from glassformer.core.training.batches import COMPUTED, LISTED, Batches, order_of
from glassformer.scale import order
from training.test_batches import corpus, equal


def by_the_book(size, keys, number):
    """One number through the network, in Python's own integers."""
    a = math.isqrt(size - 1) + 1
    b = -(-size // a)

    def mixed(x):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ x >> shift) * factor % 2**64
        return x ^ x >> 31

    while True:
        remaining, right = divmod(number, b)
        for turn, key in enumerate(keys):
            if turn % 2:
                right = (right + mixed(remaining ^ key)) % b
            else:
                remaining = (remaining + mixed(right ^ key)) % a
        number = remaining * b + right
        if number < size:
            return number


@pytest.mark.parametrize("variant", [LISTED, COMPUTED])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 99, 1000, 65536, 65537])
def test_every_row_comes_once(size, variant):
    result = order_of(size, np.random.SeedSequence(size), variant)
    full = result[0:size]
    assert full.dtype == np.int64
    assert np.array_equal(np.sort(full), np.arange(size))
    cut = [0, size // 3, size // 2, size]
    assert np.array_equal(np.concatenate([result[a:b] for a, b in itertools.pairwise(cut)]), full)


@pytest.mark.parametrize("size", [1, 7, 1000, 10**9 + 7, 2**40 + 3])
def test_the_computed_order_is_the_network_written_out(size):
    seed = np.random.SeedSequence([size, 1])
    keys = [int(key) for key in seed.generate_state(order.ROUNDS, np.uint64)]
    high = min(size, 50)
    assert order_of(size, seed, COMPUTED)[0:high].tolist() == [
        by_the_book(size, keys, n) for n in range(high)
    ]


def test_the_computed_order_looks_random():
    """Places, neighbours and inversions of 100,003 rows are those of a fair shuffle, and other
    seeds give other orders."""
    size = 100_003
    item, two = (order_of(size, np.random.SeedSequence(seed), COMPUTED)[0:size] for seed in (0, 1))
    for result in (item, two):
        assert abs(np.corrcoef(result, np.arange(size))[0, 1]) < 4 / math.sqrt(size)
        assert abs(np.corrcoef(result[1:], result[:-1])[0, 1]) < 4 / math.sqrt(size)
        assert abs(np.abs(np.diff(result)).mean() / size - 1 / 3) < 0.005
        cells = np.histogram2d(result, np.arange(size), bins=20)[0]
        # chi-square, 19 * 19
        assert ((cells - size / 400) ** 2 / (size / 400)).sum() < 361 + 4 * math.sqrt(2 * 361)
        assert (result == np.arange(size)).sum() < 10  # one is expected
    assert (item == two).sum() < 10


def test_the_order_does_not_change_with_versions():
    """A resumed run on a newer library must see the same rows: these numbers were drawn once and
    stay."""
    result = order_of(10**9, np.random.SeedSequence(0), COMPUTED)
    assert result[0:4].tolist() == [263737703, 509729113, 496970738, 564771341]


def test_a_billion_rows_are_put_in_order_in_no_memory():
    tracemalloc.start()
    result = order_of(10**9, np.random.SeedSequence(0), COMPUTED)
    rows = np.concatenate([result[low : low + 512] for low in range(0, 10**9, 10**7)])
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
    assert len(np.unique(rows)) == len(rows)


def test_a_long_corpus_is_computed_and_an_old_checkpoint_of_it_goes_on_as_it_began(monkeypatch):
    def batches(seed=3):
        return Batches(corpus([5000], eos=None), 4, 16, seed=seed)

    old = batches()
    for _ in range(150):  # into the second epoch
        next(old)
    state = json.loads(json.dumps(old.state()))
    assert state["order"] == LISTED
    monkeypatch.setattr(training_batches, "IN_MEMORY", 100)
    new, started = batches(), batches()
    assert new.state()["order"] == COMPUTED
    assert not equal(next(new), next(batches(4)))
    new.restore(state)
    assert new.state() == state
    for _ in range(100):
        assert equal(next(new), next(old))
    size = started._cursors[0].size
    rows = torch.cat([next(started).targets for _ in range(-(-size // 4))])[:size]
    targets = rows[rows != -1].tolist()
    assert len(targets) >= 4999
    assert len(set(targets)) == 4999

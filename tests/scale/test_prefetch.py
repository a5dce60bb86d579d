"""Batches read ahead are the same batches, and the cursor is where the reader stands."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import torch

from glassformer.core.training.batches import Batches
from glassformer.runs.prepared import Prepared
from glassformer.scale import prefetch
from glassformer.scale.prefetch import Prefetched, read_ahead
from glassformer.tasks.objectives import Prefix
from training.test_batches import corpus, equal


def batches():
    lengths = np.random.default_rng(2).integers(1, 90, 40).tolist()
    return Batches(corpus(lengths), batch=4, context=16, seed=11)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_ahead_or_not_the_batches_and_states_are_the_same(depth):
    plain = batches()
    ahead = Prefetched(batches(), depth)
    assert ahead.state() == plain.state()
    for _ in range(60):
        assert equal(next(ahead), next(plain))
        assert ahead.state() == plain.state()
        assert ahead.epoch == plain.epoch


def test_it_goes_on_from_a_state_in_the_middle():
    ahead = Prefetched(batches())
    plain = batches()
    for _ in range(9):
        next(ahead), next(plain)
    state = json.loads(json.dumps(ahead.state()))
    expected = [next(plain) for _ in range(5)]
    for second in (ahead, Prefetched(batches())):
        for _ in range(3):
            next(second)
        second.restore(state)
        assert second.state() == state
        assert all(equal(next(second), batch) for batch in expected)


def test_micro_batches_are_read_ahead_as_whole_batches_are():
    ahead = Prefetched(batches())
    plain = batches()
    for _ in range(7):
        (piece,) = ahead.micro_batches(2, [1])
        assert equal(piece, next(plain).rows(2, 4))
        assert ahead.state() == plain.state()


def test_the_thread_works_while_the_reader_does():
    """With the first batch handed out, ``depth`` more are drawn without being asked for, and not
    one more."""
    drawn = list[str]()
    enough = threading.Event()

    def draw(source):
        drawn.append(threading.current_thread().name)
        if len(drawn) == 3:
            enough.set()
        return next(source)

    ahead = Prefetched(batches(), 2, draw)  # whose thread works as long as it is there
    next(ahead)
    assert enough.wait(30)
    assert len(drawn) == 3
    assert all(name.startswith("batches") for name in drawn)


def test_an_error_comes_in_its_turn():
    source = batches()
    remaining = iter([True, True, False, False, False])

    def draw(group):
        if not next(remaining):
            raise OSError("the disk is gone")
        return next(group)

    ahead = Prefetched(source, 2, draw)
    next(ahead), next(ahead)
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_it_is_used_for_a_gpu_and_for_what_the_memory_cannot_hold(monkeypatch):
    group = batches()
    cpu = torch.device("cpu")
    assert read_ahead(group, cpu) is group
    assert group.bytes == 4 * len(corpus(np.random.default_rng(2).integers(1, 90, 40).tolist()))
    assert isinstance(read_ahead(group, torch.device("meta")), Prefetched)
    monkeypatch.setattr(prefetch, "available_memory", lambda device: group.bytes - 1)
    assert isinstance(read_ahead(group, cpu), Prefetched)
    assert isinstance(read_ahead(Prepared(group, Prefix(), None, 0), cpu), Prefetched)


def test_for_a_gpu_every_part_of_a_batch_is_pinned(monkeypatch):
    """The stub of pinning copies, as pinning does: this machine has no GPU to pin for."""
    requests = []

    def pin(item):
        requests.append(tuple(item.shape))
        return item.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    plain = batches()
    ahead = prefetch.read_ahead(batches(), torch.device("cuda"))
    for _ in range(3):
        item = next(plain)
        second = next(ahead)
        assert torch.equal(item.tokens, second.tokens)
        assert torch.equal(item.targets, second.targets)
    total = sum(isinstance(piece, torch.Tensor) for piece in vars(item).values())
    assert len(requests) >= 3 * total >= 6

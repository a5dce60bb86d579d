"""Clients take turns at a queue, whatever order their requests came in."""

from __future__ import annotations

from glassformer.serve.engine.sequence import Sequence
from glassformer.serve.fair_queue import FairQueue
from pages import sequence_of


def test_clients_take_turns():
    turns = FairQueue[Sequence]()
    for client, number in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        turns.add(sequence_of([number], client))
    assert [turns.pop().ids[0] for _ in range(6)] == [1, 4, 5, 2, 6, 3]

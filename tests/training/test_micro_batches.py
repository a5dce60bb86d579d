"""Micro-batches that are read twice draw the same each time."""

from __future__ import annotations

import pytest
import torch

from glassformer.core.training.batches import Batch
from glassformer.core.training.micro_batches import MicroBatches


@pytest.mark.parametrize("by_micro_batch", [True, False])
def test_a_micro_batch_draws_the_same_each_time_and_another_something_else(by_micro_batch):
    torch.manual_seed(3)
    stream = torch.rand(4)
    torch.manual_seed(3)
    batches = [Batch(torch.full((1, 2), n), torch.zeros(1, 2)) for n in range(3)]
    micro_batches = MicroBatches(
        batches, (lambda place: torch.manual_seed(10 + place)) if by_micro_batch else None
    )
    first, again = (
        torch.cat([torch.rand(1) for _ in micro_batches.iterate(backward=b)]) for b in (False, True)
    )
    assert torch.equal(first, again)
    assert len(set(first.tolist())) == 3
    assert by_micro_batch or torch.equal(torch.cat((first, torch.rand(1))), stream)

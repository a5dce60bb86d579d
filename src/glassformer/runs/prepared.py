"""Batches that an objective hides or cuts before a model learns from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..core.config.objective import Objective
from ..core.training.batches import Batch


class Prepared(Iterator[Batch]):
    """Batches hidden or cut as an objective asks: what is drawn for one is a function of the seed
    and its number."""

    def __init__(self, batches: Any, objective: Objective, tokenizer: Any, seed: int) -> None:
        self.batches, self.objective, self.tokenizer, self.seed, self.number = (
            batches,
            objective,
            tokenizer,
            seed,
            0,
        )

    def __next__(self) -> Batch:
        self.number += 1
        random = np.random.default_rng((self.seed % 2**64, 0, self.number))
        batch: Batch = self.objective.prepare(next(self.batches), random, self.tokenizer)
        return batch

    @property
    def epoch(self) -> float:
        return getattr(self.batches, "epoch", 0)

    @property
    def bytes(self) -> int:
        return getattr(self.batches, "bytes", 0)

    def state(self) -> dict[str, Any]:
        return {"number": self.number, "batches": self.batches.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state()`` was taken."""
        self.batches.restore(state["batches"])
        self.number = state["number"]


def prepared_alike(
    batches: Iterable[Batch], objective: Objective, tokenizer: Any, seed: int
) -> Iterator[Batch]:
    """The batches to validate on, hidden or cut in the same way each time."""
    for number, batch in enumerate(batches):
        yield objective.prepare(batch, np.random.default_rng((seed % 2**64, 1, number)), tokenizer)

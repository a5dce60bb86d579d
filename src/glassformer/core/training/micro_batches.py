"""The micro-batches of one batch, for a loss over all of it that reads each of them twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .batches import Batch


class MicroBatches:
    """The local ``batches`` of a step, read as often as is asked, with the same random numbers.

    ``start_rng`` starts the random generators for the micro-batch of that place; None: they run on
    from one to the next.
    """

    def __init__(
        self, batches: Sequence[Batch], start_rng: Callable[[int], None] | None = None
    ) -> None:
        self.batches, self.start_rng = list(batches), start_rng
        self._states: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def iterate(self, backward: bool = False) -> Iterator[tuple[Batch, bool]]:
        """Each micro-batch and whether it counts; ``backward``: its gradients come before the next.

        One that does not count is read for the sake of others, who wait for this process's weights.
        """
        for place, batch in enumerate(self.batches):
            self.start_generators(place, batch.tokens.device)
            yield batch, True

    def start_generators(self, place: int, device: torch.device) -> None:
        """Start the generators for a micro-batch."""
        if self.start_rng is not None:
            self.start_rng(place)
            return
        dropout = (
            torch.cuda.default_generators[device.index]
            if device.type == "cuda"
            else torch.default_generator
        )
        if place in self._states:
            dropout.set_state(self._states[place])
        else:
            self._states[place] = dropout.get_state()

    def gather(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        return list(vectors)

    def local(self, every: Sequence[Tensor]) -> list[Tensor]:
        return list(every)

    @property
    def has_first(self) -> bool:
        return True

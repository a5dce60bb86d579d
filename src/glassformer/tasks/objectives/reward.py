"""A score of an answer, learned from pairs of which one is better (Bradley-Terry).

tokens    prompt + chosen | prompt + rejected      two documents side by side, a score at the end of each
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.config import Model
from ...core.config.serial import frozen
from .documents import with_pool
from .preference import Pairs, log_loss

if TYPE_CHECKING:
    from ..answer_weights import Weighted
    from .documents import Batch, Loss


@frozen
class Reward(Pairs):
    """A score of a conversation's last answer: -log sigmoid(chosen's - rejected's) (Bradley & Terry
    1952; Ouyang et al. 2022)."""

    template: str = ""  # a chat template's file, or chatml; none: the tokenizer's
    date: str = "2024-07-26"  # today, for templates that write a date

    def with_heads(self, model: Model, labels: int) -> tuple[Model, list[str]]:
        """A pool that ends in a number."""
        return with_pool(self, model, labels=1)

    def documents(self, sides: list[list[Weighted]]) -> list[list[Weighted]]:
        """One item of two documents, each read to its last token."""
        from ..answer_weights import Weighted

        texts = [side[-1] for side in sides]
        return [[Weighted(np.append(t.ids, 0), np.append(t.weights, 0)) for t in texts]]

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over pairs, of ``Output.pooled`` (2N, 1)."""
        from ...core.training.loss import forward

        output = forward(model, batch)
        assert output.pooled is not None
        scores = output.pooled.float()[:, 0]
        margins = scores[0::2] - scores[1::2]
        return self.pair_loss(output, batch, margins, log_loss(margins, smoothing))

"""A score of an answer, learned from pairs of which one is better (Bradley-Terry).

tokens    prompt + chosen | prompt + rejected      two documents side by side, a score at the end of each
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.config import Model
from ...core.config.serial import frozen
from ..conversations import ConversationRecord
from ..example_table import Example
from .documents import with_pool
from .sft import Conversations

if TYPE_CHECKING:
    from ..answer_weights import Weighted
    from .documents import Batch, Loss


@frozen
class Reward(Conversations):
    """A score of a conversation's last answer: -log sigmoid(chosen's - rejected's) (Bradley & Terry
    1952; Ouyang et al. 2022)."""

    template: str = ""  # a chat template's file, or chatml; none: the tokenizer's
    date: str = "2024-07-26"  # today, for templates that write a date

    example_fields = ("chosen", "rejected", "prompt")
    optional = ("prompt",)

    def with_heads(self, model: Model, labels: int) -> tuple[Model, list[str]]:
        """A pool that ends in a number."""
        return with_pool(self, model, labels=1)

    def example(self, row: ConversationRecord) -> Example:
        """Two conversations that begin alike."""
        return row.pair()

    def documents(self, sides: list[list[Weighted]]) -> list[list[Weighted]]:
        """One item of two documents, each read to its last token."""
        from ..answer_weights import Weighted

        texts = [side[-1] for side in sides]
        return [[Weighted(np.append(t.ids, 0), np.append(t.weights, 0)) for t in texts]]

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over pairs, of ``Output.pooled`` (2N, 1)."""
        from torch.nn.functional import logsigmoid

        from ...core.training.loss import Loss, aux_loss, forward, tokens_in

        output = forward(model, batch)
        assert output.pooled is not None
        scores = output.pooled.float()[:, 0]
        margins = scores[0::2] - scores[1::2]
        losses = -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)
        metrics = {
            **output.metrics,
            "accuracy": (margins > 0).float().mean(),
            "margin": margins.detach().mean(),
        }
        return Loss(losses.sum(), len(losses), aux_loss(output), tokens_in(batch), metrics)

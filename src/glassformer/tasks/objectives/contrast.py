"""Contrastive learning: the one of a batch's second texts that belongs to each first one.

N pairs, C model dim.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...core.config import Decoder, Encoder, Model
from ...core.config.objective import Objective
from ...core.config.serial import PositiveFloat, frozen
from ..example_table import Example
from ..examples import ExampleRow
from .documents import ENCODER_SPECIALS, with_pool

if TYPE_CHECKING:
    from ...core.training.micro_batches import MicroBatches
    from .documents import Batch, Fit, Framing, Item, Layout, Loss, Tensor


@frozen
class Contrast(Objective):
    """Which of the batch's second texts belongs to each first one (in-batch negatives, Henderson et
    al. 2017).

    Cosines are divided by ``temperature`` before the softmax; both directions count.
    """

    temperature: PositiveFloat = 0.05  # cosines are divided by it before the softmax

    shapes = (Encoder, Decoder)
    example_fields = ("text", "second")
    specials = ENCODER_SPECIALS

    def with_heads(self, model: Model, labels: int) -> tuple[Model, list[str]]:
        """A pool that ends in a vector."""
        return with_pool(self, model, labels=0)

    def example(self, row: ExampleRow) -> Example:
        """Two texts that belong together."""
        return Example(row.prefixed_text("text"), row.text("second"), line=row.line)

    def layout(self, framing: Framing, fit: Fit) -> Layout:
        """Two documents side by side, so that a pair never leaves its row."""
        around = 2 * framing.around(1)

        def lay(example: Example, first: list[int], second: list[int] | None) -> list[Item]:
            assert second is not None
            first_item, second_item = (
                framing.texts([text]) for text in fit(example, [first, second], around, "pair")
            )
            return [{name: first_item[name] + second_item[name] for name in first_item}]

        return lay

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over pairs, of ``Output.pooled`` (2N, C)."""
        from ...core.training.loss import aux_loss, forward, tokens_in

        output = forward(model, batch)
        assert output.pooled is not None
        loss = self.of_vectors(output.pooled, smoothing)
        metrics = {**output.metrics, **loss.metrics}
        return dataclasses.replace(
            loss, aux=aux_loss(output), tokens=tokens_in(batch), metrics=metrics
        )

    def of_vectors(self, vectors: Tensor, smoothing: float = 0.0) -> Loss:
        """The loss of vectors (2N, C), the two of a pair one after the other."""
        import torch
        from torch.nn.functional import cross_entropy, normalize

        from ...core.training.loss import Loss

        vectors = normalize(vectors.float(), dim=-1)
        first, second = vectors[0::2], vectors[1::2]
        scores = first @ second.mT / self.temperature  # (N, N)
        right = torch.arange(len(scores), device=scores.device)
        forth, back = (
            cross_entropy(x, right, reduction="sum", label_smoothing=smoothing)
            for x in (scores, scores.mT)
        )
        accuracy = (scores.argmax(-1) == right).float().mean()
        return Loss((forth + back) / 2, len(scores), metrics={"accuracy": accuracy})

    def all_micro_batches(
        self, model: Any, micro_batches: MicroBatches, smoothing: float = 0.0
    ) -> list[Loss]:
        """The loss of all micro-batches as of one batch, its gradients left in ``.grad``; no more
        than one is held.

        All are read for their vectors, then each once more for its gradients (Gao et al. 2021,
        gradient cache). The first one's loss has the sum of all.
        """
        import torch

        from ...core.training.loss import Loss, aux_loss, forward, tokens_in

        def pooled(micro_batch: Batch, is_real: bool) -> Tensor:
            vectors = forward(model, micro_batch).pooled
            assert vectors is not None
            return vectors.detach() if is_real else vectors.detach()[:0]

        vectors = micro_batches.gather([pooled(*pair) for pair in micro_batches.iterate()])
        leaf = torch.cat(vectors).requires_grad_()
        batch_loss = self.of_vectors(leaf, smoothing)
        batch_loss.sum.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        grads = micro_batches.local(torch.split(leaf.grad, [len(chunk) for chunk in vectors]))
        losses: list[Loss] = []
        for (micro_batch, is_real), grad in zip(
            micro_batches.iterate(backward=True), grads, strict=True
        ):
            output = forward(model, micro_batch)
            assert output.pooled is not None
            total = (output.pooled * (grad if is_real else 0)).sum()
            added, pairs = aux_loss(output), len(grad) // 2
            if added is not None:
                total = total + added * pairs
            total.backward()  # type: ignore[no-untyped-call]
            if is_real:
                first = micro_batches.has_first and not losses
                aux = None if added is None else added.detach()
                metrics = {
                    name: metric.detach() for name, metric in output.metrics.items()
                } | batch_loss.metrics
                loss = batch_loss.sum.detach() if first else torch.zeros_like(batch_loss.sum)
                losses.append(Loss(loss, pairs, aux, tokens_in(micro_batch), metrics))
        return losses

"""The label of each word of a sentence, at its first token.

tokens   [CLS] ann ##a lives [SEP]
targets    -    3   -    1     -
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...core.config import Decoder, Encoder, Model, TokenHead
from ...core.config.objective import Objective
from ...core.config.serial import frozen
from ...core.errors import need
from ..example_table import Example
from ..examples import ExampleRow
from .documents import ENCODER_SPECIALS, positions, without_head

if TYPE_CHECKING:
    from .documents import Batch, Fit, Framing, Item, Layout, Loss, Tensor


@frozen
class Tag(Objective):
    """The label of each word, read at its first token; its other tokens are not counted (Devlin et
    al. 2019, 5.3)."""

    shapes = (Encoder, Decoder)
    example_fields = ("tokens", "labels")
    specials = ENCODER_SPECIALS
    labelled = True

    def with_heads(self, model: Model, labels: int) -> tuple[Model, list[str]]:
        """A head over labels at every token."""
        config, notes = without_head(self, model)
        assert not config.has_source
        config, head = replace(config, pool=None), config.token_head
        if head is not None:
            return replace(config, token_head=replace(head, labels=labels, span=False)), notes
        dropout = max(getattr(body, "dropout", 0.0) for body in config.bodies.values())
        notes.append("The model has no head over labels; one is added.")
        return replace(config, token_head=TokenHead(labels, dropout=dropout)), notes

    def example(self, row: ExampleRow) -> Example:
        """A sentence of words with a label each."""
        sentence = (
            "Words that are tagged have no text before them; leave data.prefix (--before) out."
        )
        need(not row.before, sentence)
        words, labels = row.words("tokens"), row.list("labels")
        mismatch = (
            f"{row.location} has {len(words)} words and {len(labels)} labels; "
            "give one for each word."
        )
        need(len(words) == len(labels), mismatch)
        tags = tuple(map(row.label, labels))
        return Example(" ".join(words), line=row.line, words=words, tags=tags)

    def layout(self, framing: Framing, fit: Fit) -> Layout:
        """Words' ids between what opens and closes a text, and a target at the first of each."""
        opened = framing.texts([[-1]])["tokens"]
        start = opened.index(-1)
        around = len(opened) - 1

        def lay(example: Example, words: list[list[int]], second: list[int] | None) -> list[Item]:
            ids = [id for word in words for id in word]
            tags = [
                t
                for tag, word in zip(example.tags, words, strict=True)
                for t in (tag, *[-1] * (len(word) - 1))
            ]
            (ids,), (tags,) = (fit(example, [values], around, "sentence") for values in (ids, tags))
            return [
                {**framing.texts([ids]), "targets": [-1] * start + tags + [-1] * (around - start)}
            ]

        return lay

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over words, of ``Output.tagged`` (B, T, L) against ``batch.targets``."""
        import torch
        from torch.nn.functional import cross_entropy

        from ...core.nn.flow import document_starts
        from ...core.training.loss import Loss, aux_loss, forward, tokens_in

        output = forward(model, batch)
        assert output.tagged is not None
        indices = batch.target_indices()
        answer, labels = (
            output.tagged.flatten(0, 1)[indices].float(),
            batch.targets.flatten()[indices],
        )
        total = cross_entropy(answer, labels, reduction="sum", label_smoothing=smoothing)
        chosen, count = answer.argmax(-1), len(labels)
        metrics = {**output.metrics, "accuracy": (chosen == labels).float().sum() / max(1, count)}
        sentence = document_starts(positions(batch)).flatten().cumsum(0)[indices]
        first = sentence.diff(prepend=sentence.new_zeros(1)).clamp(max=1)
        labels = torch.stack((labels, first), 1)
        return Loss(total, count, aux_loss(output), tokens_in(batch), metrics, chosen, labels)

    def metrics(
        self, predictions: Tensor, labels: Tensor, names: tuple[str, ...] = ()
    ) -> dict[str, float]:
        """Entity precision, recall and F1 if the labels are BIO; labels (N, 2), the second 1 where a
        sentence begins."""
        import torch

        from ..entities import agreement, are_bio

        if not are_bio(names):
            return {}
        starts = labels[:, 1].nonzero()[1:, 0].cpu()
        sides = (torch.tensor_split(side.cpu(), starts) for side in (predictions, labels[:, 0]))
        predicted, true = (
            [[names[label] for label in sentence.tolist()] for sentence in side] for side in sides
        )
        return agreement(predicted, true)

"""An objective that Glassformer does not have, in a file of one's own: ``--use
own_objective.py``."""

from __future__ import annotations

from glassformer import config
from glassformer.core.config.objective import Objective
from glassformer.tasks.example_table import Example
from glassformer.tasks.objectives.documents import with_pool


@config.member(Objective)
class Prefer(Objective):
    """Which of two texts is better: a score for each, the better one's above the other's by
    ``margin``."""

    margin: float = 1.0

    shapes = (config.Encoder, config.Decoder)
    example_fields = ("better", "worse")
    specials = ("[PAD]", "<unk>", "[CLS]", "[SEP]")

    def with_heads(self, model, labels):
        return with_pool(self, model, labels=1)

    def example(self, row):
        return Example(row.prefixed_text("better"), row.text("worse"), line=row.line)

    def layout(self, framing, fit):
        def lay(example, better, worse):
            first, second = map(
                framing.texts, ([text] for text in fit(example, [better, worse], 4, "pair"))
            )
            return [{name: first[name] + second[name] for name in first}]

        return lay

    def loss(self, model, batch, smoothing=0.0):
        from torch.nn.functional import softplus

        from glassformer.core.training.loss import Loss, forward, tokens_in

        # a document's each, the two of a pair side by side
        scores = forward(model, batch).pooled[:, 0].float()
        apart = scores[0::2] - scores[1::2]
        total = softplus(self.margin - apart).sum()
        return Loss(
            total,
            len(apart),
            tokens=tokens_in(batch),
            predictions=apart.detach(),
            labels=apart.detach(),
        )

    def metrics(self, predictions, labels, names=()):
        return {"preferred": float((predictions > 0).float().mean())}

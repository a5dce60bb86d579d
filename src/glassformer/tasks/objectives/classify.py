"""The label of a text or of two, or a number.

tokens  [CLS] a a [SEP] b [SEP]    segments  0 0 0 0 1 1    labels, one a document

B batch, T tokens, D documents (texts), C model dim, L labels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...core.config import Decoder, Encoder, Model
from ...core.config.objective import Objective, Tune
from ...core.config.serial import frozen
from ...core.errors import need
from ..correlation import correlations, matthews
from ..example_table import Example
from ..examples import ExampleRow
from .documents import ENCODER_SPECIALS, positions, with_pool

if TYPE_CHECKING:
    from .documents import Batch, Fit, Framing, Item, Layout, Loss, Tensor


@frozen
class Classify(Objective):
    """The label of one text or of two; ``regression`` learns a number instead.

    Where examples are few: ``rdrop`` reads each text twice, with other dropout, and weighs how far
    apart both answers are (R-Drop, Liang et al. 2021); ``adversarial`` reads it once more with its
    embedded tokens moved to where the loss grows fastest, all together by that many times the
    length of one (Miyato et al. 2017). 0 is neither.
    """

    regression: bool = False  # learn a number instead of a label
    # weight of how far two readings with other dropout are apart (R-Drop); 0: one reading
    rdrop: float = 0.0
    # length of the adversarial step, in lengths of the embedded text; 0: none
    adversarial: float = 0.0

    shapes = (Encoder, Decoder)
    example_fields = ("text", "second", "label")
    optional = ("second",)
    specials = ENCODER_SPECIALS
    labelled = True
    regularizers = ("rdrop", "adversarial")

    @property
    def smooths_labels(self) -> bool:
        return not self.regression

    def __post_init__(self) -> None:
        for name in ("rdrop", "adversarial"):
            value = getattr(self, name)
            need(0 <= value < math.inf, f"Classify.{name} is {value:g}; give 0 or more.")

    def check(
        self, model: Model, tokenizer: Any = None, *, examples: bool, tune: Tune | None = None
    ) -> None:
        """UserError for R-Drop without dropout too."""
        super().check(model, tokenizer, examples=examples)
        rates = [body.dropout for body in model.bodies.values()]
        rates += [getattr(settings, "dropout", 0.0) for settings in (model.pool, tune)]
        sentence = (
            "Classify.rdrop compares readings with different dropout, and this model has none; set"
        )
        need(
            not self.rdrop or any(rates),
            f"{sentence} {next(iter(model.bodies))}.dropout, or rdrop = 0.",
        )

    def with_heads(self, model: Model, labels: int) -> tuple[Model, list[str]]:
        """A pool that ends in the labels."""
        return with_pool(self, model, labels=labels or 1)

    def example(self, row: ExampleRow) -> Example:
        """A text, perhaps a second one, and a label or a number."""
        text = row.prefixed_text("text")
        second = row.text("second") if "second" in row else None
        label = (row.number if self.regression else row.label)(row.record["label"])
        return Example(text, second, label, row.line)

    def layout(self, framing: Framing, fit: Fit) -> Layout:
        """One text or two between what opens and closes them."""
        around = framing.around

        def lay(example: Example, first: list[int], second: list[int] | None) -> list[Item]:
            texts = [first] if second is None else [first, second]
            return [framing.texts(fit(example, texts, around(len(texts)), "text"))]

        return lay

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over documents, of ``Output.pooled`` against labels (D,), long, or float for
        regression."""
        import torch

        from ...core.nn import Tape
        from ...core.training.loss import Loss, aux_loss, forward, tokens_in

        labels = batch.labels
        assert labels is not None
        adversarial = self.adversarial > 0 and model.training
        # a gradient is asked for there, also where the weights before it are frozen
        leaf = {"*.embed": lambda path, x: x if x.requires_grad else x.detach().requires_grad_()}
        tape = Tape("*.embed", edits=leaf, graph=True) if adversarial else None
        output = forward(model, batch, tape)
        answer, metrics = self._answer(output), dict(output.metrics)
        total = self._error(answer, labels, smoothing)
        if self.rdrop and model.training:
            second_answer = self._answer(forward(model, batch))
            total = (
                total
                + self._error(second_answer, labels, smoothing)
                + self.rdrop * self.divergence(answer, second_answer)
            ) / 2
        if tape is not None:
            (embedded,) = tape.records.values()
            (grad,) = torch.autograd.grad(total, embedded, retain_graph=True)
            step = self.adversarial * ascent(grad, embedded.detach(), positions(batch), len(labels))
            moved = Tape(edits={"*.embed": lambda path, x: x + step})
            total = (
                total + self._error(self._answer(forward(model, batch, moved)), labels, smoothing)
            ) / 2
        if not self.regression:
            metrics["accuracy"] = (answer.argmax(-1) == labels).float().mean()
        return Loss(
            total, len(labels), aux_loss(output), tokens_in(batch), metrics, answer.detach(), labels
        )

    def metrics(
        self, predictions: Tensor, labels: Tensor, names: tuple[str, ...] = ()
    ) -> dict[str, float]:
        """Correlations of numbers, Matthews' of two labels."""
        if self.regression:
            return correlations(predictions, labels)
        return (
            {"matthews": matthews(predictions.argmax(-1), labels)}
            if predictions.shape[1] == 2
            else {}
        )

    def _answer(self, output: Any) -> Tensor:
        """The logits of each document's labels (D, L), or a number (D,)."""
        answer: Tensor = output.pooled.float()
        return answer[:, 0] if self.regression else answer

    def _error(self, answer: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy or squared error, summed over documents."""
        from torch.nn.functional import cross_entropy

        if self.regression:
            return (answer - labels).square().sum()
        return cross_entropy(answer, labels, reduction="sum", label_smoothing=smoothing)

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """Kullback-Leibler divergence both ways between two answers (Liang et al. 2021, 2), or the
        squared difference; summed."""
        if self.regression:
            return (first - second).square().sum()
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        return ((p.exp() - q.exp()) * (p - q)).sum() / 2


def ascent(grad: Tensor, embedded: Tensor, pos: Tensor, documents: int) -> Tensor:
    """``grad`` (B, T, C), in each of so many documents scaled to the mean length of its embedded
    tokens; padding has none."""
    import torch

    from ...core.nn.flow import document_starts

    lengths = torch.linalg.vector_norm(embedded.float(), dim=-1)  # (B, T)
    which = (document_starts(pos).flatten().cumsum(0) - 1).clamp(min=0)
    real = (pos.flatten() >= 0).float()
    sums = (
        torch.stack(
            (grad.float().square().sum(-1).flatten(), lengths.flatten(), torch.ones_like(real))
        )
        * real
    )
    # of each document
    square, length, tokens = lengths.new_zeros(3, documents).index_add_(1, which, sums)
    scale: Tensor = length / tokens / square.sqrt().clamp(min=1e-30)
    return grad * scale[which].view(*lengths.shape, 1).to(grad.dtype)

"""The cost of few bits: of each matrix and of the whole model, in its weights, its outputs,
its answers and its size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ...core.nn import Model
from ...core.nn.model import inference
from .calibration import Sides, forward_row

LOGITS = 1 << 26  # numbers of the answers that are kept to compare with


@dataclass(frozen=True)
class Effect:
    """Change of the answers: ``kl`` in nats a token, from the model's own distribution;
    ``agreement``, the share of tokens whose likeliest one is the same; ``perplexity`` where it
    writes, and ``change`` of it, as a share, on the text or the targets of pairs. Without logits:
    ``difference``, the relative error of the vectors.
    """

    kl: float | None = None
    agreement: float | None = None
    perplexity: float | None = None
    change: float | None = None
    difference: float | None = None

    @property
    def harm(self) -> float:
        """The sort key of effects."""
        return next((x for x in (self.kl, self.difference) if x is not None), 0.0)


@dataclass(frozen=True)
class MatrixReport:
    """One matrix, quantized alone: relative errors (Frobenius) of the weight, and of its output on
    calibration text.

    ``before`` and ``after`` are bytes. ``output`` and ``effect`` are None where no text was given.
    """

    name: str
    shape: tuple[int, ...]
    bits: int
    before: int
    after: int
    weight: float
    output: float | None = None
    effect: Effect | None = None


@dataclass(frozen=True)
class Whole:
    """All matrices at once, rounded in one way."""

    rounding: str
    weight: float
    output: float | None
    effect: Effect | None


@dataclass(frozen=True)
class QuantizationReport:
    """Everything: ``rows`` the most harmful first, ``wholes`` by how they were rounded, the one
    that is kept last.

    ``before`` and ``after`` are the bytes of all weights; ``perplexity`` is that of the model
    before.
    """

    model: str
    bits: int
    group: int
    head: int
    dtype: str
    before: int
    after: int
    perplexity: float | None
    calibrated: int
    measured: int
    rows: tuple[MatrixReport, ...]
    wholes: tuple[Whole, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rows = (f"{row.name:44} {row.bits} bits  error {row.weight:.4f}" for row in self.rows)
        megabytes = f"{self.before / 1e6:,.2f} MB became {self.after / 1e6:,.2f} MB"
        return "\n".join((*rows, megabytes))


def relative_error(weight: Tensor, rounded: Tensor, gram: Tensor | None = None) -> float:
    """The relative error of a weight, or of its outputs over a text; ``gram`` as in calibration."""
    wide = weight.detach().float()
    error, size = (
        float((x.square() if gram is None else (x @ gram) * x).sum())
        for x in (rounded - wide, wide)
    )
    return ratio(error, size)


def ratio(error: float, size: float) -> float:
    """The relative error of both squares."""
    if size > 0:
        return math.sqrt(max(error, 0.0) / size)
    return 0.0


class Answers:
    """Reference outputs of the unchanged model on some rows; ``effect`` compares later outputs with
    them."""

    def __init__(self, model: Model, rows: Sequence[Sides]) -> None:
        longest = max(tokens.numel() for tokens, _ in rows)
        most = (
            max(1, LOGITS // (model.config.embed.vocab * longest))
            if model.head is not None
            else len(rows)
        )
        self.rows = rows[:most]
        self.tokens = sum(tokens.numel() for tokens, _ in self.rows)
        # not one text twice
        paired = any(source is not None and source is not tokens for tokens, source in rows)
        self.predicts = model.config.is_decoder or paired
        self.reference = [self.answer(model, row) for row in self.rows]
        self.perplexity = self.effect(model).perplexity

    def answer(self, model: Model, row: Sides) -> Tensor:
        """Logits as log-probabilities (T, V); the vectors of a model without a head."""
        with inference(model):
            output = forward_row(model, row)
        if model.head is not None:
            chances: Tensor = output.logits[0].float().log_softmax(-1)
            return chances
        vectors: Tensor = next(
            x for x in (output.pooled, output.tagged, output.hidden) if x is not None
        )
        return vectors.float().flatten(0, -2)

    def effect(self, model: Model, only: int | None = None) -> Effect:
        """Distance of the model's outputs from the reference; ``only`` the first rows, of so many
        tokens in all."""
        kl = agreements = loss = first = error = size = 0.0
        count = predicted = 0
        tokens_seen = 0
        for row, reference in zip(self.rows, self.reference, strict=True):
            if only is not None and tokens_seen >= only:
                break
            tokens_seen += row[0].numel()
            now = self.answer(model, row)
            if model.head is None:
                error, size = (
                    error + float((now - reference).square().sum()),
                    size + float(reference.square().sum()),
                )
                continue
            kl += float(F.kl_div(now, reference, reduction="sum", log_target=True))
            agreements += int((now.argmax(-1) == reference.argmax(-1)).sum())
            count += len(now)
            if self.predicts:
                targets = row[0][0, 1:].to(now.device)
                loss += float(F.nll_loss(now[:-1], targets, reduction="sum"))
                first += float(F.nll_loss(reference[:-1], targets, reduction="sum"))
                predicted += len(now) - 1
        if model.head is None:
            return Effect(difference=ratio(error, size))
        if not predicted:
            return Effect(max(kl / count, 0.0), agreements / count)
        before, after = (math.exp(min(nats / predicted, 700.0)) for nats in (first, loss))
        return Effect(max(kl / count, 0.0), agreements / count, after, after / before - 1)


def ordered(
    rows: Sequence[MatrixReport], effects: Mapping[str, Effect]
) -> tuple[MatrixReport, ...]:
    """The rows with their effects, the most harmful first; without any by the error of the output
    or the weight."""
    with_effects = [replace(row, effect=effects.get(row.name)) for row in rows]
    return tuple(
        sorted(
            with_effects,
            key=lambda row: -(row.effect.harm if row.effect else row.output or row.weight),
        )
    )

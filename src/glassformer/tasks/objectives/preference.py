"""Preference between two answers, learned by the probabilities of both (DPO, IPO, ORPO, SimPO).

tokens    prompt + chosen | prompt + rejected      two documents side by side
targets   -        chosen | -        rejected      labels: the reference's log-probability of each

N pairs, K counted tokens, C model dim.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...core.config.serial import PositiveFloat, frozen
from ...core.errors import need
from ..conversations import ConversationRecord
from ..example_table import Example
from .documents import in_pieces
from .sft import Conversations

if TYPE_CHECKING:
    from ..answer_weights import Weighted
    from ..encoded import Encoded
    from .documents import Batch, Loss, Tensor


class Pairs(Conversations):
    """An objective that learns from two answers, the better one first."""

    example_fields = ("chosen", "rejected", "prompt")
    optional = ("prompt",)

    def example(self, row: ConversationRecord) -> Example:
        """Two conversations that begin alike."""
        return row.pair()

    def pair_loss(
        self, output: Any, batch: Batch, margins: Tensor, losses: Tensor, **metrics: Tensor
    ) -> Loss:
        """The losses of pairs, summed, and by how much the better answers lead."""
        from ...core.training.loss import Loss, aux_loss, tokens_in

        metrics = {
            **output.metrics,
            "accuracy": (margins > 0).float().mean(),
            "margin": margins.detach().mean(),
            **metrics,
        }
        return Loss(losses.sum(), len(losses), aux_loss(output), tokens_in(batch), metrics)


@frozen
class Preference(Pairs):
    """The better one of two answers, without a model of rewards.

    With p the model's log-probability of an answer and r what the model said where it began:

    - "dpo" (Rafailov et al. 2023): -log sigmoid(beta * ((p - r of chosen) - (p - r of rejected)))
    - "ipo" (Azar et al. 2023): (the same difference, a mean over tokens, - 1 / (2 beta)) ** 2
    - "orpo" (Hong et al. 2024): the loss of the chosen answer - beta * log sigmoid(log odds ratio)
    - "simpo" (Meng et al. 2024): -log sigmoid(beta * (mean p chosen - mean p rejected) - margin)

    Label smoothing is the share of pairs that are the wrong way around (Mitchell 2023).
    """

    method: Literal["dpo", "ipo", "orpo", "simpo"] = "dpo"  # the loss of a pair
    beta: PositiveFloat | None = None  # how much a difference counts; none: 0.1, for simpo 2
    margin: PositiveFloat = 1.0  # by which simpo wants the chosen answer to be better
    template: str = ""  # a chat template's file, or chatml; none: the tokenizer's
    date: str = "2024-07-26"  # today, for templates that write a date

    without_reference = 'method = "simpo"'
    undivided = ("context", "tensor")

    def __post_init__(self) -> None:
        only_simpo = 'margin is for simpo alone; leave it out, or set method = "simpo".'
        need(self.method == "simpo" or self.margin == 1.0, only_simpo)
        for name, value in (("beta", self.beta or 1.0), ("margin", self.margin)):  # fp32 holds both
            need(1e-6 <= value <= 1e6, f"{name} is {value:g}; give a number from 1e-06 to 1e+06.")

    @property
    def needs_reference(self) -> bool:
        """True if the loss compares with the model that training begins from."""
        return self.method in ("dpo", "ipo")

    @property
    def smooths_labels(self) -> bool:
        return self.method != "ipo"

    def documents(self, sides: list[list[Weighted]]) -> list[list[Weighted]]:
        """One item of two documents, so that a pair never leaves its row."""
        return [[texts[-1] for texts in sides]]

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over pairs."""
        from ...core.training.loss import forward

        output = forward(model, batch)
        sums, lengths = log_probabilities(model, output.hidden, batch)
        if self.needs_reference:
            assert batch.labels is not None
            sums = sums - batch.labels
        scores = sums if self.method == "dpo" else sums / lengths
        chosen, rejected = scores[0::2], scores[1::2]
        beta = self.beta or (2.0 if self.method == "simpo" else 0.1)
        margins = chosen - rejected
        if self.method == "ipo":
            losses = (margins - 1 / (2 * beta)).square()
        else:
            logits = beta * margins - (self.margin if self.method == "simpo" else 0.0)
            if self.method == "orpo":
                logits = margins - (log_of_rest(chosen) - log_of_rest(rejected))
            losses = log_loss(logits, smoothing)
            if self.method == "orpo":
                losses = beta * losses - chosen
        means = {"chosen": chosen.detach().mean(), "rejected": rejected.detach().mean()}
        return self.pair_loss(output, batch, margins, losses, **means)

    def with_reference(self, model: Any, encoded: Encoded, batch: int, context: int) -> Encoded:
        """The examples with the log-probability that a model gives each answer before training."""
        import torch

        from ...core.training.loss import forward
        from ...formats import store
        from ..example_batches import each_once

        device, values = next(model.parameters()).device, []
        with torch.no_grad():
            for rows in each_once(encoded, batch, context):
                rows = rows.to(device)
                sums, _ = log_probabilities(model, forward(model, rows).hidden, rows)
                values.append(sums.cpu().numpy())
        reference = np.concatenate(values).reshape(-1, 2)
        return replace(encoded, reference=reference, judge=store.digest(model))


def log_loss(margins: Tensor, smoothing: float) -> Tensor:
    """-log sigmoid(margins), where the share ``smoothing`` of pairs is the wrong way around."""
    from torch.nn.functional import logsigmoid

    return -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)


def log_of_rest(logs: Tensor) -> Tensor:
    """log(1 - exp(x)) of log-probabilities below 0."""
    import torch

    return torch.log1p(-logs.clamp(max=-1e-6).exp())


def log_probabilities(model: Any, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The log-probability of each document's targets and their number, (2N,)."""
    import torch

    from ...core.nn.flow import document_starts

    def log_probability(states: Tensor, targets: Tensor) -> Tensor:
        logits = model.head(states, model.embed).float()
        logs: Tensor = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        return logs

    indices = batch.target_indices()
    rows = (hidden.flatten(0, 1)[indices], batch.targets.flatten()[indices])
    logs = torch.cat(in_pieces(model, log_probability, *rows))
    host: Batch = batch.host or batch
    assert batch.pos is not None and host.pos is not None
    document = document_starts(batch.pos).flatten().cumsum(0)[indices] - 1
    documents = document_starts(host.pos).sum()  # counted where it costs no wait
    empty = logs.new_zeros(int(documents))
    return empty.index_add(0, document, logs), empty.index_add(0, document, torch.ones_like(logs))

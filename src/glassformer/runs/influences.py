"""Sequences of a training that moved the loss of a text: by gradients, and by leaving them out.

A sequence is one row of one step's batch. Its estimate is of first order (TracIn: Pruthi et al.
2020, arXiv 2002.08484),

    learning rate * gradient of the text . change of the mean gradient by the row

with the text's gradient at the end of the run and the row's at the step that read it. The
measurement is the text's loss after the same training without the row's targets, less the loss with
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import need, note
from ..core.training.batches import Batch
from ..core.training.loop import State
from ..sight.figures.charts import TableFigure
from ..tasks.correlation import correlations
from .launch import Setup
from .prepare import first_of
from .replay import Replay
from .updates import excerpt, row_gradients, texts_of


@dataclass(frozen=True)
class SequenceInfluence:
    """One sequence by its ``step`` and ``row``: by how much the text's loss rises without it."""

    step: int
    row: int
    text: str
    estimate: float
    measured: float = 0.0


@dataclass(frozen=True)
class LeftOutAlone:
    """Sequences of which each was left out alone; ``together``: the rise of the loss without all of
    them, ``spearman``: the rank correlation of estimate and measurement."""

    sequences: list[SequenceInfluence]
    together: float
    spearman: float


@dataclass(frozen=True)
class Influence:
    """The ``loss`` of a text, its most influential sequences by estimate, and ``random`` others."""

    loss: float
    largest: LeftOutAlone
    random: LeftOutAlone

    def lines(self) -> list[str]:
        """The largest sequences, then how far the estimates are right."""
        rows = [
            (str(x.step), str(x.row), excerpt(x.text), x.estimate, x.measured)
            for x in self.largest.sequences
        ]
        heading = ("step", "row", "text", "estimate", "measured")
        pairs = ("most influential", self.largest), ("random", self.random)
        sums = [(name, x.spearman, x.together) for name, x in pairs]
        titles = (f"{len(rows)} sequences", "rank correlation", "all left out")
        return [
            f"The loss of the text is {self.loss:.4f}. Without a sequence it rises by:",
            *TableFigure("", heading, rows, (2,), "+.2e").lines(),
            "",
            *TableFigure("", titles, sums, form="+.4f").lines(),
        ]


def left_out(
    state: State, batches: Iterator[Batch], rows: Sequence[SequenceInfluence]
) -> Iterator[Batch]:
    """A run's batches in which some rows have no targets; draws and order stay as they are."""
    for batch in batches:
        targets = batch.targets.clone()
        targets[[x.row for x in rows if x.step == state.step + 1]] = -1
        yield replace(batch, targets=targets)


def influence(folder: str | Path, text: str, *, count: int = 10, seed: int = 0) -> Influence:
    """Finds the sequences of a run that moved the loss of a text most, and trains without each.

    Args:
        folder: The folder of a run on running text.
        text: The text whose loss is asked about.
        count: Sequences that are left out; as many random ones are the baseline.
        seed: The seed of the random choice.

    Returns:
        The estimates and what was measured, with their rank correlations.

    Raises:
        UserError: There is no such run, its objective is another, the text is too short, or the
            run's data has changed.

    Example:
        >>> result = glassformer.influence("out/mine", "Ann saw Rome", count=2)
        >>> print(result.largest.spearman)
    """
    run = Replay(folder)
    loss = _mean_loss(run.start(run.last), text).item()
    estimates = sorted(_estimates(run, text), key=lambda x: -abs(x.estimate))
    need(2 * count <= len(estimates), "The run read fewer sequences than twice that; give fewer.")
    note(f"Training again {2 * count + 2} times, without some sequences.")

    def rise(rows: Sequence[SequenceInfluence]) -> float:
        again = run.start(min(x.step for x in rows) - 1)
        again.state.batches = left_out(again.state, again.state.batches, rows)
        list(run.steps(again, run.last, checked=False))
        return float(_mean_loss(again, text).item() - loss)

    def measure(rows: Sequence[SequenceInfluence]) -> LeftOutAlone:
        measured = [replace(x, measured=rise([x])) for x in rows]
        pairs = [x.estimate for x in measured], [x.measured for x in measured]
        return LeftOutAlone(measured, rise(rows), correlations(*pairs)["spearman"])

    random_rows = random.Random(seed).sample(estimates[count:], count)
    return Influence(loss, measure(estimates[:count]), measure(random_rows))


def _mean_loss(ready: Setup, text: str) -> Any:
    """The loss of a text, without dropout, as a tensor with a graph."""
    plan, model = ready.plan, ready.state.model.eval()
    objective = plan.settings.train.objective
    need(objective.every_token, "Influence is of runs that learn each token of running text.")
    assert plan.tokenizer is not None
    ids = torch.tensor([plan.tokenizer.encode(text)[: plan.context + 1]])
    need(ids.numel() > 1, "The text has fewer than two tokens, so nothing in it can be predicted.")
    batch = Batch(ids[:, :-1], ids[:, 1:]).to(next(model.parameters()).device)
    loss = objective.loss(model, batch)
    return loss.sum / loss.count


def _estimates(run: Replay, text: str) -> Iterator[SequenceInfluence]:
    """Each sequence of the run with its estimate, while the run is computed again."""
    end, ready = run.start(run.last), run.start(0)
    weights, parameters = (list(x.state.optimizer.parameters.values()) for x in (end, ready))
    toward = _flat(torch.autograd.grad(_mean_loss(end, text), weights, materialize_grads=True))
    steps = run.steps(ready, run.last)
    while ready.state.step < run.last:
        batch = first_of(ready.state.batches)
        dots = torch.stack([_flat(x) @ toward for x in row_gradients(ready, batch, parameters)])
        targets = (batch.targets >= 0).sum(1)
        # the mean over the other rows' targets, less that over all
        count = targets.sum()
        changes = (dots * count - dots.sum() * targets) / count / (count - targets)
        step = next(steps)
        for row, words in enumerate(texts_of(ready, batch)):
            yield SequenceInfluence(step.index, row, words, step.lr * float(changes[row]))


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])

"""Sequences of a training that moved the loss of a text: by gradients, and by leaving them out.

A sequence is one row of one step's batch. Its estimate is of first order (TracIn: Pruthi et al.
2020, arXiv 2002.08484),

    sum over parameters of rate * gradient of the text . change of the mean gradient by the row

with the text's gradient at the end of the run, the row's at the step that read it, and as rate how
far the step moved the parameter for a unit of gradient. The measurement is the text's loss after
the same training without the row's targets, less the loss with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import need, note
from ..core.training.batches import Batch
from ..core.training.loop import State
from ..core.training.loss import Loss
from ..sight.figures.charts import TableFigure
from ..tasks.correlation import correlations
from .launch import Setup
from .replay import Replay, opened
from .updates import excerpt, peek, row_gradients, texts_of


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
        shown = [replace(x, text=excerpt(x.text)) for x in self.largest.sequences]
        names = [field.name for field in dataclasses.fields(SequenceInfluence)]
        table = TableFigure("", names, map(dataclasses.astuple, shown), (2,), "+.2e")
        kinds = {"most influential": self.largest, "random": self.random}
        rows = [
            (f"{len(shown)} {name} sequences", x.spearman, x.together) for name, x in kinds.items()
        ]
        heading = ("", "rank correlation", "all left out")
        loss = f"The loss of the text is {self.loss:.4f}. Without a sequence it rises by:"
        return [loss, *table.lines(), "", *TableFigure("", heading, rows, form="+.4f").lines()]


class LeftOut(Iterator[Batch]):
    """Batches in which some rows have no targets; draws and order stay as they are."""

    def __init__(self, state: State, rows: Collection[SequenceInfluence]) -> None:
        self.batches, self.training, self.rows = state.batches, state, rows

    def __next__(self) -> Batch:
        batch: Batch = next(self.batches)
        targets, step = batch.targets.clone(), self.training.step + 1
        targets[[x.row for x in self.rows if x.step == step]] = -1
        return replace(batch, targets=targets)


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
    need(count > 1, f"count is {count}; a rank correlation needs 2 sequences or more.")
    with opened(folder) as run:
        end = run.start(run.last)
        batch = _batch_of(end, text)
        loss = float(_loss(end, batch).sum.detach())
        estimates = sorted(_estimates(run, end, batch), key=lambda x: -abs(x.estimate))
        most = len(estimates) // 2
        need(count <= most, f"The run read {2 * most} sequences; give a count up to {most}.")
        places = np.random.default_rng(seed).permutation(len(estimates) - count)[:count] + count
        note(f"Training again {2 * count + 2} times, without some sequences.")

        def rise(rows: Collection[SequenceInfluence]) -> float:
            again = run.start(min(x.step for x in rows) - 1)
            again.state.batches = LeftOut(again.state, rows)
            list(run.steps(again, run.last, checked=False))
            return (float(_loss(again, batch).sum.detach()) - loss) / batch.targets.numel()

        def measure(rows: Sequence[SequenceInfluence]) -> LeftOutAlone:
            measured = [replace(x, measured=rise([x])) for x in rows]
            pairs = [x.estimate for x in measured], [x.measured for x in measured]
            return LeftOutAlone(measured, rise(rows), correlations(*pairs)["spearman"])

        lists = measure(estimates[:count]), measure([estimates[place] for place in places])
    return Influence(loss / batch.targets.numel(), *lists)


def _batch_of(ready: Setup, text: str) -> Batch:
    """The text as the one row of a batch."""
    plan, objective = ready.plan, ready.plan.settings.train.objective
    need(
        objective.every_token,
        f"{type(objective).__name__} does not learn each token of a running text; influence is of "
        "runs that do, such as Causal.",
    )
    assert plan.tokenizer is not None
    ids = torch.tensor([plan.tokenizer.encode(text)[: plan.context + 1]])
    need(ids.numel() > 1, "The text has fewer than two tokens, so nothing in it can be predicted.")
    return Batch(ids[:, :-1], ids[:, 1:])


def _loss(ready: Setup, batch: Batch) -> Loss:
    """The loss of the text, without dropout."""
    model = ready.state.model.eval()
    loss: Loss = ready.plan.settings.train.objective.loss(
        model, batch.to(next(model.parameters()).device)
    )
    return loss


def _estimates(run: Replay, end: Setup, asked: Batch) -> Iterator[SequenceInfluence]:
    """Each sequence of the run with its estimate, while the run is computed again."""
    toward = torch.autograd.grad(
        _loss(end, asked).sum / asked.targets.numel(),
        list(end.state.optimizer.parameters.values()),
        materialize_grads=True,
    )
    ready = run.start(0)
    parameters = list(ready.state.optimizer.parameters.values())
    steps = run.steps(ready, run.last)
    while ready.state.step < run.last:
        batch = peek(ready)
        grads = list(row_gradients(ready, batch, parameters))
        before = [parameter.detach().clone() for parameter in parameters]
        number = next(steps).index
        total = [torch.stack(rows).sum(0) for rows in zip(*grads, strict=True)]
        moved = [x - y.detach() for x, y in zip(before, parameters, strict=True)]
        rates = [
            float(x.norm() / y.norm().clamp(min=1e-30)) for x, y in zip(moved, total, strict=True)
        ]
        dots = [_dot(rates, toward, row) for row in grads]
        targets = (batch.targets >= 0).sum(1).tolist()
        for row, text in enumerate(texts_of(ready, batch)):
            # the mean over the other rows' targets, less that over all
            others = sum(targets) - targets[row]
            change = dots[row] * sum(targets) - sum(dots) * targets[row]
            yield SequenceInfluence(number, row, text, change / max(1, others))


def _dot(rates: list[float], left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    pairs = zip(rates, left, right, strict=True)
    return sum(rate * float((x * y).sum()) for rate, x, y in pairs)

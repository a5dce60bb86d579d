"""A weight opened in time: its first value and what each step of a run did to it.

    after = (before + decay) + move      decay: weight decay; move: the step along the gradient

Each value is the optimizer's own fp32 number. ``decay`` and ``move`` are differences of such
numbers, exact in fp64, so that the first value and all of them add up to the last one, to the bit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UserError, nearest, need
from ..core.training.batches import Batch
from ..core.training.loop import State, TrainStep, seed_micro_batch
from ..core.training.loss import split
from ..sight.figures.charts import TableFigure
from .launch import Setup
from .prepare import first_of
from .replay import Replay

FORM = "+.9g"  # digits that tell a float32 number from its neighbours


@dataclass(frozen=True)
class Update:
    """One step of one number: ``gradient`` as the optimizer read it, a mean after clipping; ``lr``
    of its group, ``loss`` of the step's batch."""

    step: int
    before: float
    decay: float
    move: float
    after: float
    gradient: float
    lr: float
    loss: float


@dataclass(frozen=True)
class WeightHistory:
    """The ``start`` of a number and its ``updates`` in order; a step that was skipped has none."""

    address: str
    start: float
    updates: list[Update]

    @property
    def remainder(self) -> float:
        """The last value less the first and all changes: 0."""
        changes = [-number for x in self.updates for number in (x.decay, x.move)]
        return math.fsum([self.updates[-1].after, -self.start, *changes])

    def lines(self, count: int = 8) -> list[str]:
        """The sum, then the ``count`` updates that changed the number most."""
        sums = (math.fsum(getattr(x, name) for x in self.updates) for name in ("decay", "move"))
        row = self.start, *sums, self.updates[-1].after, self.remainder
        heading = "before the first step", "decay", "move", "after the last", "missing in the sum"
        largest = sorted(self.updates, key=lambda x: -abs(x.after - x.before))
        return [
            self.address,
            *TableFigure("", heading, [row], (), FORM).lines(),
            "",
            *_table(largest[:count]),
        ]


def _table(updates: Iterable[Update]) -> list[str]:
    names = [field.name for field in dataclasses.fields(Update)]
    return TableFigure("", names, map(dataclasses.astuple, updates), (), FORM).lines()


@dataclass(frozen=True)
class SequenceGradient:
    """Share of one sequence of a batch in the gradient of one number; ``row`` counts from 0."""

    row: int
    text: str
    gradient: float


@dataclass(frozen=True)
class UpdateTexts:
    """One ``update`` of a number, and the sequences of its batch in order."""

    address: str
    update: Update
    sequences: list[SequenceGradient]

    @property
    def difference(self) -> float:
        """The sequences' sum less the batch's gradient: rounding."""
        return math.fsum([*(x.gradient for x in self.sequences), -self.update.gradient])

    def lines(self, count: int = 8) -> list[str]:
        """The update, then the ``count`` sequences with the largest gradients."""
        terms = [(f"row {x.row}", excerpt(x.text), x.gradient) for x in self.sequences]
        batch = ("", "all", self.update.gradient), ("", "rounding", self.difference)
        table = TableFigure.of_sum(("", "text", "gradient"), terms, count, *batch, form=FORM)
        return [self.address, *_table([self.update]), "", *table.lines()]


def excerpt(text: str) -> str:
    return repr(text[:60])


class Watch:
    """One number of a run's trained parameters, and what each step of the optimizer does to it."""

    def __init__(self, state: State, address: str) -> None:
        trained, self.address = state.optimizer.parameters, address
        name, _, index = address.strip().removesuffix("]").partition("[")
        need(
            name in trained,
            f"{name} is no parameter that trains in this run.{nearest(name, trained)}",
        )
        self.parameter = trained[name]
        try:
            self.index = tuple(map(int, index.split(",")))
            self.value(self.parameter)
        except (ValueError, RuntimeError, IndexError):
            raise UserError(
                f"{address} is not one number: give an index inside of "
                f"{list(self.parameter.shape)}, such as {name}[0,1]."
            ) from None
        for optimizer in state.optimizer.optimizers:
            for group in optimizer.param_groups:
                if name in group["paths"]:
                    self.group = group
                    optimizer.register_step_pre_hook(self._read)
        self.read: tuple[float, ...] = ()  # before, after decay, gradient; of the last step

    def value(self, tensor: Tensor) -> float:
        number: float = tensor[self.index].item()
        return number

    def _read(self, *_: object) -> None:
        """Before a step of the optimizer: the value, what decay makes of it, the gradient."""
        number = self.parameter[self.index]
        group = self.group
        grad = self.parameter.grad
        if grad is not None:
            decayed = number * (1 - group["lr"] * group["weight_decay"])  # in fp32, as it does
            self.read = number.item(), decayed.item(), self.value(grad)

    def updates(self, steps: Iterable[TrainStep]) -> Iterator[Update]:
        """The update of each step that was not skipped."""
        for step in steps:
            if self.read:
                (before, decayed, gradient) = self.read
                after = self.value(self.parameter)
                numbers = before, decayed - before, after - decayed, after, gradient
                yield Update(step.index, *numbers, self.group["lr"], step.loss)
            self.read = ()


def weight_history(folder: str | Path, address: str) -> WeightHistory:
    """Opens a weight of a run into its first value and its updates, by computing the run again.

    Args:
        folder: The folder of the run.
        address: One number of a parameter that trains, such as ``"head.proj.weight[3,5]"``.

    Returns:
        The number before the first step and each update, which add up to its last value exactly.

    Raises:
        UserError: There is no such run or weight, or the run's data has changed.

    Example:
        >>> history = glassformer.weight_history("out/mine", "decoder.blocks.0.attn.q.weight[5,7]")
        >>> print("\\n".join(history.lines()))
    """
    run = Replay(folder)
    ready = run.start(0)
    watch = Watch(ready.state, address)
    start = watch.value(watch.parameter)
    updates = list(watch.updates(run.steps(ready, run.last)))
    need(bool(updates), f"No step of {folder} moved {address}.")
    return WeightHistory(address, start, updates)


def update_texts(folder: str | Path, address: str, step: int) -> UpdateTexts:
    """Opens one update of a weight into the sequences of its batch, by their gradients.

    Args:
        folder: The folder of the run.
        address: One number of a parameter that trains, such as ``"head.proj.weight[3,5]"``.
        step: The step, counted from 1.

    Returns:
        The update, and the gradient of each sequence, which add up to the batch's within rounding.

    Raises:
        UserError: There is no such run, weight or step, the step was skipped, or the run's data has
            changed.

    Example:
        >>> texts = glassformer.update_texts("out/mine", "decoder.blocks.0.attn.q.weight[5,7]", 1)
        >>> print("\\n".join(texts.lines()))
    """
    run = Replay(folder)
    run.check(step)
    ready = run.start(step - 1)
    list(run.steps(ready, step - 1))
    watch = Watch(ready.state, address)
    batch = first_of(ready.state.batches)
    gradients = [watch.value(x) for (x,) in row_gradients(ready, batch, [watch.parameter])]
    (done,) = steps = list(run.steps(ready, step))
    update = next(watch.updates(steps), None)
    if update is None:
        raise UserError(f"Step {step} did not move {address}.")
    clip = ready.plan.settings.train.clip or math.inf
    count = int((batch.targets >= 0).sum())
    scale = min(1.0, clip / (done.grad_norm + 1e-6)) / count
    rows = zip(texts_of(ready, batch), gradients, strict=True)
    sequences = [SequenceGradient(row, text, scale * x) for row, (text, x) in enumerate(rows)]
    return UpdateTexts(address, update, sequences)


def texts_of(ready: Setup, batch: Batch) -> list[str]:
    """Each row of a batch as text."""
    tokenizer: Any = ready.plan.tokenizer
    pos = torch.zeros_like(batch.tokens) if batch.pos is None else batch.pos
    rows = zip(batch.tokens, pos >= 0, strict=True)
    return [tokenizer.decode(row[is_token].tolist()) for row, is_token in rows]


def row_gradients(
    ready: Setup, batch: Batch, parameters: Sequence[Tensor]
) -> Iterator[list[Tensor]]:
    """The gradients of each row's summed loss in the next step.

    A row is read among the others of its micro-batch, with the step's random numbers, and only its
    own targets count.
    """
    state, train_config = ready.state, ready.plan.settings.train
    objective = train_config.objective
    need(
        objective.all_micro_batches is None and batch.labels is None,
        "A loss that compares sequences does not open into them.",
    )
    state.model.train()
    for number, micro_batch in enumerate(split(batch, train_config.accumulate)):
        for row in range(len(micro_batch.tokens)):
            seed_micro_batch(train_config.seed, state.step, number)
            targets = torch.full_like(micro_batch.targets, -1)
            targets[row] = micro_batch.targets[row]
            alone = dataclasses.replace(micro_batch, targets=targets).to(parameters[0].device)
            loss = objective.loss(state.model, alone, train_config.label_smoothing)
            yield list(torch.autograd.grad(loss.total, parameters, materialize_grads=True))

"""A weight opened in time: its first value and what each step of a run did to it.

    after = (before + decay) + move      decay: weight decay; move: the step along the gradient

Each value is the optimizer's own fp32 number. ``decay`` and ``move`` are differences of such
numbers, exact in fp64, so that the first value and all of them add up to the last one, to the bit.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import nearest, need
from ..core.training.batches import Batch
from ..core.training.loop import State, TrainStep, seed_piece
from ..core.training.loss import split
from ..core.training.optimizer import Muon
from ..sight.figures.charts import Chart, Curves, Folded, TableFigure
from ..sight.figures.shown import Records, Shown
from .launch import Setup
from .replay import opened

EXCERPT = 60  # characters of a sequence that a line shows


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

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, repr=False)
class WeightHistory(Shown):
    """The ``start`` of a number and its ``updates`` in order; a step that was skipped has none."""

    folder: str
    address: str
    start: float
    updates: list[Update]

    @property
    def end(self) -> float:
        return self.updates[-1].after if self.updates else self.start

    @property
    def remainder(self) -> float:
        """What is missing between the first value, all changes and the last value: 0."""
        changes = [number for update in self.updates for number in (update.decay, update.move)]
        return math.fsum([self.start, *changes, -self.end])

    @property
    def title(self) -> str:
        return f"{self.address} over {len(self.updates):,} updates of {self.folder}"

    def records(self) -> Records:
        """A row for each update, in order."""
        names = [field.name for field in dataclasses.fields(Update)]
        return names, [dataclasses.astuple(update) for update in self.updates]

    def charts(self) -> Iterator[Chart]:
        """The number over the steps, and its largest changes."""
        steps = [update.step for update in self.updates]
        yield Curves(self.address, {"value": (steps, [x.after for x in self.updates])})
        yield Folded("the largest changes", [self._table()])

    def _table(self, count: int = 8) -> TableFigure:
        """The updates that changed the number most, the largest first."""
        largest = sorted(self.updates, key=lambda x: -abs(x.change))[:count]
        heading = ("step", "change", "decay", "along the gradient", "after", "gradient", "rate")
        rows = [
            (
                f"{x.step:,}",
                *map(_signed, (x.change, x.decay, x.move)),
                digits(x.after),
                _signed(x.gradient),
                f"{x.lr:.3g}",
            )
            for x in largest
        ]
        return TableFigure("", heading, rows, ())

    def lines(self, count: int = 8) -> list[str]:
        """The sum, then the ``count`` largest updates."""
        sums = [math.fsum(getattr(x, name) for x in self.updates) for name in ("decay", "move")]
        rows = [
            ("before the first step", digits(self.start)),
            ("weight decay", _signed(sums[0])),
            ("steps along the gradient", _signed(sums[1])),
            (f"after {len(self.updates):,} updates", digits(self.end)),
            ("missing in the sum", f"{self.remainder:g}"),
        ]
        return [self.title, *TableFigure("", (), rows).lines(), "", *self.table(count)]


@dataclass(frozen=True)
class SequenceGradient:
    """Share of one sequence of a batch in the gradient of one number; ``row`` counts from 0."""

    row: int
    gradient: float
    text: str


@dataclass(frozen=True, repr=False)
class UpdateTexts(Shown):
    """One ``update`` of a number, and the sequences of its batch, the largest gradient first."""

    folder: str
    address: str
    update: Update
    sequences: list[SequenceGradient]

    @property
    def difference(self) -> float:
        """How far the sequences' sum is from the batch's gradient: rounding."""
        return math.fsum([*(x.gradient for x in self.sequences), -self.update.gradient])

    @property
    def title(self) -> str:
        return f"{self.address} at step {self.update.step:,} of {self.folder}"

    def records(self) -> Records:
        """A row for each sequence."""
        return ("row", "gradient", "text"), [dataclasses.astuple(x) for x in self.sequences]

    def charts(self) -> Iterator[Chart]:
        yield self._table(len(self.sequences))

    def _table(self, count: int = 8) -> TableFigure:
        """The sequences, those behind the first ``count`` in one line, and their sum."""
        shown, others = self.sequences[:count], self.sequences[count:]
        rows = [(str(x.row), _signed(x.gradient), repr(x.text[:EXCERPT])) for x in shown]
        if others:
            total = math.fsum(x.gradient for x in others)
            rows.append(("..", _signed(total), f"{len(others):,} more"))
        return TableFigure("", ("row", "gradient", "text"), rows, (2,))

    def lines(self, count: int = 8) -> list[str]:
        """The update, then its sequences."""
        x = self.update
        rows = [
            ("before", digits(x.before)),
            ("weight decay", _signed(x.decay)),
            ("step along the gradient", _signed(x.move)),
            ("after", digits(x.after)),
            ("gradient of the batch", _signed(x.gradient)),
            ("sum of its sequences less that", f"{self.difference:+.2g}"),
        ]
        return [self.title, *TableFigure("", (), rows).lines(), "", *self.table(count)]


def digits(number: float) -> str:
    """A float32 number with the digits that tell it from its neighbours."""
    return f"{number:.9g}"


def _signed(number: float) -> str:
    return f"{number:+.6g}"


class Watch:
    """One number of a run's trained parameters, and what each step of the optimizer does to it."""

    def __init__(self, state: State, address: str) -> None:
        match = re.fullmatch(r"\s*([^\[\]\s]+)\s*\[\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\]\s*", address)
        trained = state.optimizer.parameters
        example = next(name for name, value in trained.items() if value.ndim == 2)
        need(
            match is not None,
            f'"{address}" is no address of a weight; give one such as {example}[0,1].',
        )
        assert match is not None
        self.name, self.index = match[1], tuple(map(int, match[2].split(",")))
        if self.name not in trained:
            frozen = self.name in dict(state.model.named_parameters())
            reason = "does not train in this run" if frozen else "is no parameter of this run"
            need(False, f"{self.name} {reason}.{nearest(self.name, trained)}")
        self.parameter: Tensor = trained[self.name]
        shape = list(self.parameter.shape)
        inside = len(self.index) == len(shape) and all(
            -side <= at < side for at, side in zip(self.index, shape, strict=True)
        )
        need(inside, f"{self.name} has the shape {shape}; give an index inside of it.")
        self.address = f"{self.name}[{','.join(map(str, self.index))}]"
        self.optimizer, self.group = next(
            (optimizer, group)
            for optimizer in state.optimizer.optimizers
            for group in optimizer.param_groups
            if self.name in group["paths"]
        )
        self.read: list[float] = []  # before, after decay, gradient, after; of the last step

    def value(self) -> float:
        return self.parameter[self.index].item()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While entered, the optimizer's steps are read."""
        hooks = [
            self.optimizer.register_step_pre_hook(lambda *_: self._read_before()),
            self.optimizer.register_step_post_hook(lambda *_: self.read.append(self.value())),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _read_before(self) -> None:
        grad = self.parameter.grad
        if grad is not None:
            self.read = [self.value(), self._decayed(), grad[self.index].item()]

    def _decayed(self) -> float:
        """The number after weight decay alone, by the optimizer's own arithmetic."""
        group, number = self.group, self.parameter.detach()[self.index].reshape(1).clone()
        if isinstance(self.optimizer, Muon):
            number *= 1 - group["lr"] * group["weight_decay"]
        else:
            names = ("lr", "betas", "eps", "weight_decay", "fused")
            number.grad = torch.zeros_like(number)  # so that decay alone moves it
            torch.optim.AdamW([number], **{name: group[name] for name in names}).step()
        value: float = number.item()
        return value

    def update(self, step: TrainStep) -> Update | None:
        """The update that the optimizer made last; None where the step was skipped."""
        if len(self.read) < 4:
            return None
        (before, decayed, gradient, after), self.read = self.read, []
        moves = decayed - before, after - decayed
        return Update(step.index, before, *moves, after, gradient, self.group["lr"], step.loss)


def weight_history(folder: str | Path, address: str, step: int | None = None) -> WeightHistory:
    """Opens a weight of a run into its first value and its updates, by computing the run again.

    Args:
        folder: The folder of the run.
        address: One number of a parameter that trains, such as ``"head.proj.weight[3,5]"``.
        step: The last step; None is the run's last checkpoint.

    Returns:
        The number before the first step and each update, which add up to its last value exactly.

    Raises:
        UserError: There is no such run, weight or step, or the run's data has changed.

    Example:
        >>> history = glassformer.weight_history("out/mine", "decoder.blocks.0.attn.q.weight[5,7]")
        >>> print("\\n".join(history.lines()))
    """
    with opened(folder) as run:
        last = run.last if step is None else step
        run.check(last, "step")
        ready = run.start(0)
        watch = Watch(ready.state, address)
        start = watch.value()
        with watch.attached():
            updates = [watch.update(step) for step in run.steps(ready, last)]
    return WeightHistory(str(folder), watch.address, start, [x for x in updates if x is not None])


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
    with opened(folder) as run:
        run.check(step, "step")
        ready = run.start(step - 1)
        watch = Watch(ready.state, address)
        for _ in run.steps(ready, step - 1):
            pass
        batch = peek(ready)
        gradients, count = _row_gradients(ready, batch, watch)
        with watch.attached():
            (done,) = run.steps(ready, step)
            update = watch.update(done)
    need(update is not None, f"Step {step} was skipped: {done.skipped}; the weights stayed.")
    assert update is not None
    clip = ready.plan.settings.train.clip or math.inf
    scale = min(1.0, clip / (done.grad_norm + 1e-6)) / max(1, count)
    texts = texts_of(ready, batch)
    rows = [
        SequenceGradient(row, gradient * scale, text)
        for row, (gradient, text) in enumerate(zip(gradients, texts, strict=True))
    ]
    return UpdateTexts(
        str(folder), watch.address, update, sorted(rows, key=lambda x: -abs(x.gradient))
    )


def peek(ready: Setup) -> Batch:
    """The batch of the next step, which stays the next one."""
    cursor = ready.state.batches.state()
    batch: Batch = next(ready.state.batches)
    ready.state.batches.restore(cursor)
    return batch


def texts_of(ready: Setup, batch: Batch) -> list[str]:
    """Each row of a batch as text; of a pair the source stands before it."""
    plan = ready.plan
    sides = [(batch.tokens, batch.pos, plan.tokenizer)]
    if batch.source is not None:
        sides.insert(0, (batch.source, batch.source_pos, plan.source_tokenizer or plan.tokenizer))
    texts = [
        [
            tokenizer.decode(row[slice(None) if pos is None else pos[at] >= 0].tolist())
            for at, row in enumerate(tokens)
        ]
        for tokens, pos, tokenizer in sides
        if tokenizer is not None
    ]
    return [" -> ".join(row) for row in zip(*texts, strict=True)]


def _row_gradients(ready: Setup, batch: Batch, watch: Watch) -> tuple[list[float], int]:
    """The gradient of each row's summed loss by the number, and the targets of all rows.

    A row is read among the others of its piece, with the draws that the step makes, and only its
    own targets count.
    """
    state, train_config = ready.state, ready.plan.settings.train
    objective = train_config.objective
    need(
        objective.all_pieces is None and batch.labels is None,
        f"The loss of {type(objective).__name__} is not a sum over targets of single sequences, so "
        "a step opens for other objectives only.",
    )
    state.model.train()
    device, gradients, count = watch.parameter.device, list[float](), 0
    draws = partial(seed_piece, train_config.seed, state.step)
    for number, piece in enumerate(split(batch, train_config.accumulate)):
        count += int((piece.targets >= 0).sum())
        for row in range(len(piece.tokens)):
            draws(number)
            targets = torch.full_like(piece.targets, -1)
            targets[row] = piece.targets[row]
            alone = dataclasses.replace(piece, targets=targets).to(device)
            loss = objective.loss(state.model, alone, train_config.label_smoothing)
            (grad,) = torch.autograd.grad(loss.total, watch.parameter, allow_unused=True)
            gradients.append(0.0 if grad is None else grad[watch.index].item())
    return gradients, count

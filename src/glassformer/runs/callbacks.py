"""Callbacks, which consume steps: evaluate, save, log. Each gets a TrainStep, in the order they
are given."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import files
from ..core.config.objective import Objective
from ..core.errors import UserError, note
from ..core.nn.model import inference
from ..core.training.batches import Batch
from ..core.training.loop import TrainStep
from ..core.training.loss import Loss, mean_metrics
from ..scale.mesh import ALONE, Mesh
from ..scale.parallel import ROWS
from ..scale.shard import reshard
from ..scale.shared_batches import columns, in_order, mesh_of, shared_out
from ..sight.routing import RouteCounts, count_routes
from . import run_checkpoints
from .history import read_log as read_log

Hook = Callable[[TrainStep], None]
PROGRESS = 10.0  # seconds after which a validation says how far it is


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Use the model without training it: no dropout, no gradients, every random state as it was
    afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    device = next(model.parameters()).device
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), inference(model):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@dataclass
class Evaluate:
    """Fills in ``step.valid_loss``: the mean over the same validation batches each time, which
    ``batches()`` gives.

    What else the objective can tell (accuracy, correlations) goes to ``step.metrics``, as
    "valid_accuracy", and where mixtures of experts sent which tokens to ``step.routes``.
    """

    batches: Callable[[], Iterable[Batch]]
    objective: Objective
    every: int
    labels: tuple[str, ...] = ()
    mesh: Mesh = ALONE
    count: int = 0  # batches of the last evaluation
    routes: RouteCounts = field(default_factory=RouteCounts)
    save_at: Collection[int] = ()

    def __call__(self, step: TrainStep) -> None:
        if step.due(self.every) or (self.every and step.index in self.save_at):
            model = step.state.eval_model()
            # of each process that has rows or blocks of its own
            gather = functools.partial(self.mesh.gather_along, ("pipeline", *ROWS, "context"))
            with count_routes(model, gather) as step.routes:
                self.routes = step.routes
                step.valid_loss, valid_metrics = self.measure(model)
            step.metrics = {
                **step.metrics,
                **{f"valid_{name}": fact for name, fact in valid_metrics.items()},
            }

    def measure(self, model: Any) -> tuple[float, dict[str, Any]]:
        """The validation loss of ``model``, in its own number format, and what else there is to
        say."""
        device = next(model.parameters()).device
        losses: list[Loss] = []
        noted = time.monotonic()
        with evaluating(model), columns(model, self.mesh) as cut:
            for batch, is_real in shared_out(self.batches(), self.mesh):
                # then it is computed only for others, which need this process
                self.routes.paused = not is_real
                loss = self.objective.loss(model, cut(batch.to(device)))
                losses += [loss] if is_real else []
                if time.monotonic() - noted > PROGRESS:
                    noted = time.monotonic()
                    note(
                        f"  validated on {len(losses):,} "
                        f"batches{f' of {self.count:,}' if self.count else ''}"
                    )
            self.count = len(losses)
            if not self.mesh.alone:
                losses = in_order(losses, self.mesh)
                reshard(model)
            metrics = mean_metrics(losses)
            answered = [
                (loss.predictions, loss.labels) for loss in losses if loss.predictions is not None
            ]
            if answered:
                predictions, labels = (
                    torch.cat(tensors) for tensors in zip(*answered, strict=True)
                )
                metrics |= self.objective.metrics(predictions, labels, self.labels)
        targets = int(sum(loss.count for loss in losses))
        return sum(float(loss.sum) for loss in losses) / targets if targets else math.nan, metrics


@dataclass
class Save:
    """Keeps the last checkpoints and the best one of a run folder.

    It saves ``every`` so many steps, at each step of ``save_at``, at a new best validation loss and
    at the end. A skipped step left the weights as they were: after one they are saved only where no
    checkpoint has them yet, or where the run ends.
    """

    folder: Path
    every: int
    keep: int
    tokenizer: Any = None
    source_tokenizer: Any = None
    save_at: Collection[int] = ()

    def __call__(self, step: TrainStep) -> None:
        state, better = step.state, False
        if (
            step.valid_loss is not None
            and step.valid_loss < state.best
            and (step.last or not state.skipped_in_a_row)
        ):
            state.best, state.best_step, better = step.valid_loss, step.index, True
        due = step.due(self.every) or step.index in self.save_at
        if better or step.last or (due and not state.skipped_in_a_row):
            self.save(step)

    def save(self, step: TrainStep) -> None:
        """Save now what is not saved yet; what no longer counts among the last is removed after
        that."""
        mesh, newest = mesh_of(step.state), run_checkpoints.newest(self.folder)
        kept_step = mesh.first(run_checkpoints.number(newest) if newest else 0)
        moved = step.index - step.state.skipped_in_a_row  # the step that last moved the weights
        if step.last or not step.state.skipped_in_a_row or moved > kept_step:
            run_checkpoints.save(self.folder, step.state, self.tokenizer, self.source_tokenizer)
            if mesh.is_first:
                run_checkpoints.rotate(self.folder, self.keep, self.save_at)


class Rank0Hooks:
    """Hooks of the first process alone: a mistake that it meets there is everybody's."""

    def __init__(self, hooks: Iterable[Hook], mesh: Mesh) -> None:
        self.hooks, self.mesh = list(hooks), mesh

    def __call__(self, step: TrainStep) -> None:
        with self.mesh.agreeing():
            for hook in self.hooks:
                hook(step)


@dataclass
class Sample:
    """Lets the model write now and then. A sharded model needs all processes for it; the first one
    shows the text, and adds it to a file of JSON lines, of which those after ``start`` are dropped."""

    write: Callable[[Any], str] | None
    every: int
    path: Path
    mesh: Mesh = ALONE
    start: int = 0

    def __post_init__(self) -> None:
        if self.mesh.is_first and self.path.exists():
            drop_after(self.start, self.path)

    def __call__(self, step: TrainStep) -> None:
        if self.write is None or not step.due(self.every):
            return
        with evaluating(step.state.model):
            text = self.write(step.state.model)
        if self.mesh.is_first:
            with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps({"step": step.index, "text": text}) + "\n")
            note(f"  sample: {text!r}")


def drop_after(step: int, path: Path) -> None:
    """Write a log anew without half a line and without what a lost run wrote after ``step``."""
    lines = [line for line in read_log(path) if line["step"] <= step] if step else []
    files.write(path, "".join(json.dumps(line) + "\n" for line in lines))


class Log:
    """One JSON object a step in ``log.jsonl``; going on from ``start``, what a lost run wrote after
    it is dropped."""

    def __init__(self, path: Path, start: int = 0) -> None:
        drop_after(start, path)
        try:
            self.file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise files.explain(error, path) from None
        self.path = path

    def __call__(self, step: TrainStep) -> None:
        self.write(metrics(step))

    def write(self, line: dict[str, Any]) -> None:
        """One more line; UserError where the file is no longer there."""
        try:
            if not os.path.samestat(self.path.stat(), os.fstat(self.file.fileno())):
                raise FileNotFoundError
        except FileNotFoundError:
            raise UserError(
                f"{self.path} was moved or removed while training; training stopped."
            ) from None
        try:
            self.file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise files.explain(error, self.path) from None

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(OSError):  # a full disk was reported when it was met
            self.file.close()


class Routing(Log):
    """Which tokens each expert gets, a line for each mixture at each validation; as
    ``Routes.top_tokens`` has it."""

    def __init__(
        self, path: Path, tokenizer: Any, start: int = 0, source_tokenizer: Any = None
    ) -> None:
        super().__init__(path, start)
        self.tokenizer, self.source_tokenizer = tokenizer, source_tokenizer or tokenizer

    def __call__(self, step: TrainStep) -> None:
        for path, routes in step.routes.items():
            reads = self.source_tokenizer if path.startswith("encoder.") else self.tokenizer
            experts = []
            for expert in routes.top_tokens():
                tokens = [(reads.token(id), n, _short(share)) for id, n, share in expert["tokens"]]
                experts.append({"share": _short(expert["share"]), "tokens": tokens})
            choices = int(routes.times.sum())
            self.write(
                {"step": step.index, "mixture": path, "choices": choices, "experts": experts}
            )


class TensorBoard:
    """The same numbers as TensorBoard events; needs the ``tensorboard`` package."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined, unused-ignore]

        self.writer: Any = SummaryWriter(str(folder), purge_step=start + 1 if start else None)

    def __call__(self, step: TrainStep) -> None:
        for name, value in metrics(step).items():
            for place, number in _numbers(name, value):
                self.writer.add_scalar(place, number, step.index)

    def close(self) -> None:
        """Write what is left and let go of the files."""
        self.writer.close()


def metrics(step: TrainStep) -> dict[str, Any]:
    """A step's numbers as JSON holds them: those that are not finite are left out, and ``skipped``
    says why."""
    names = (
        "loss",
        "valid_loss",
        "lr",
        "lrs",
        "grad_norm",
        "tokens",
        "seconds",
        "epoch",
        "skipped",
    )
    numbers = {"step": step.index, **{name: getattr(step, name) for name in names}}
    numbers["seconds"] = round(step.seconds, 6)
    if len(set(step.lrs.values())) <= 1:
        numbers["lrs"] = None
    numbers |= {name: _short(fact) for name, fact in step.metrics.items()}
    return {
        k: v
        for k, v in numbers.items()
        if v is not None and not (isinstance(v, float) and not math.isfinite(v))
    }


def _short(fact: Any) -> Any:
    """A fact to six digits, whatever it is made of; what is not finite is none."""
    if isinstance(fact, list):
        return [_short(item) for item in fact]
    return float(f"{fact:.6g}") if math.isfinite(fact) else None


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every float in a fact, by its place: load/0/3."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _numbers(f"{name}/{place}", item)
    elif isinstance(value, float):
        yield name, value

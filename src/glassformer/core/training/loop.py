"""The training loop, a generator: each step is yielded to whoever logs, evaluates, saves or draws.

batch -> micro-batches -> objective -> backward -> (finite?) -> scale, clip -> optimizer -> yield
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import registry
from ..config import run
from ..config.objective import Objective
from ..errors import Stuck
from ..nn import Model
from .batches import Batch
from .causal import Causal
from .loss import Sums, gradients
from .optimizer import Optimizer, factor_in_extended_run


@dataclass
class State:
    """State of a training: the weights, the optimizer, the position in the data, the step.

    ``best`` is the lowest validation loss so far, of step ``best_step``. Training may run through
    ``bf16_replica``, a copy of the model. Where only a change of another model is trained,
    ``base_model`` is its name and ``frozen_digest`` tells its weights; ``labels`` are the names of
    what is chosen from. ``earlier_ends`` are the steps at which the run had ended before more were
    asked for. ``gradients`` computes a step's where several processes share the run.
    """

    model: Model
    optimizer: Optimizer
    batches: Any
    step: int = 0
    tokens: int = 0
    skipped_in_a_row: int = 0
    best: float = math.inf
    best_step: int | None = None
    base_model: str | None = None
    frozen_digest: str | None = None
    labels: tuple[str, ...] = ()
    earlier_ends: tuple[int, ...] = ()
    gradients: Callable[..., Sums] | None = field(default=None, repr=False)
    bf16_replica: Any = field(default=None, repr=False)

    def eval_model(self) -> Any:
        """The model in the number format it is trained in, its weights those of now."""
        if self.bf16_replica is None:
            return self.model
        self.bf16_replica.follow()
        return self.bf16_replica.model


@dataclass
class TrainStep:
    """One step done. ``loss`` is a mean over its targets, ``grad_norm`` the gradient's before
    clipping, ``lr`` the largest of the groups' ``lrs``, by their names.

    ``tokens`` were read for it. ``skipped`` says why the weights were left alone, if they were;
    ``metrics`` are what else is known (accuracy, the experts' load); a hook may fill in
    ``valid_loss``, the loss on what is held out, and ``routes``, which tokens each mixture sent
    where there.
    """

    index: int
    steps: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    seconds: float
    epoch: int
    state: State = field(repr=False)
    skipped: str | None = None
    valid_loss: float | None = None
    lrs: dict[str, float] = field(default_factory=dict, repr=False)
    metrics: dict[str, Any] = field(default_factory=dict, repr=False)
    routes: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def last(self) -> bool:
        return self.index == self.steps

    def due(self, every: int) -> bool:
        """True at every ``every``th step (0: never) and at the last one."""
        return every > 0 and (self.index % every == 0 or self.last)


def train(
    model: Model,
    batches: Iterator[Batch],
    objective: Objective | None = None,
    settings: run.Train | None = None,
    *,
    state: State | None = None,
    execution: Any = None,
) -> Iterator[TrainStep]:
    """Train ``model`` in place, a yielded TrainStep at a time; ``state`` goes on with a run.

    ``execution`` is its number format and compiling; None: what fast/training/execution.py chooses.
    Raises Stuck, a UserError, when ``settings.max_skipped_steps`` steps in a row have no finite
    loss and gradient; such steps never reach the weights.
    """
    settings = settings or run.Train()
    objective = objective or Causal()
    state = state or State(model, Optimizer(model, settings.optimizer), batches)
    runner, replica, computing = model, None, nullcontext
    for room in registry.load("execution"):
        execution = execution or room.choose_execution(model, None, objective, settings)
        runner, replica, computing = room.prepare(model, execution, state.gradients is not None)
    state.bf16_replica = replica
    if state.step == 0:
        seed(settings.seed)
    base_lr = max(group["base_lr"] for group in state.optimizer.groups())
    while state.step < settings.steps:
        start = time.perf_counter()
        if not model.training:
            model.train()
        if replica is not None:
            replica.follow()
        start_rng = functools.partial(seed_micro_batch, settings.seed, state.step)
        with computing():  # fp32 products in TF32, where that was asked for
            if state.gradients is not None:
                sums = state.gradients(runner, batches, objective, settings, start_rng)
            else:
                options = objective, settings.accumulate, settings.label_smoothing
                sums = gradients(runner, next(batches), *options, start_rng)
        count = max(1, sums.count)
        named_grads = state.optimizer.gradients()
        grads, norm = list(named_grads.values()), state.optimizer.norm(named_grads) / count
        factor = factor_in_extended_run(
            settings.schedule, state.step + 1, settings.steps, state.earlier_ends
        )
        skipped = None
        if sums.count == 0:
            skipped = "the batch has no targets"
        elif not math.isfinite(sums.total):
            skipped = f"the loss is {sums.total}"
        elif not math.isfinite(norm):
            skipped = f"the gradient is {norm}"
        else:
            _scale(grads, norm, count, settings.clip)
            state.optimizer.step(factor)
        state.optimizer.clear()
        del named_grads, grads
        state.skipped_in_a_row = state.skipped_in_a_row + 1 if skipped else 0
        state.step += 1
        state.tokens += sums.tokens
        yield TrainStep(
            index=state.step,
            steps=settings.steps,
            loss=sums.loss / count,
            lr=base_lr * factor,
            lrs={group["name"]: group["base_lr"] * factor for group in state.optimizer.groups()},
            grad_norm=norm,
            tokens=sums.tokens,
            seconds=time.perf_counter() - start,
            epoch=getattr(batches, "epoch", 0),
            state=state,
            skipped=skipped,
            metrics=sums.metrics,
        )
        if state.skipped_in_a_row >= settings.max_skipped_steps:
            many = f"{state.skipped_in_a_row} steps in a row were skipped ({skipped})"
            stopped = f"Training stopped at step {state.step}: {many}"
            fix = "lower train.optimizer.lr or check the data, the weights are as they were before."
            raise Stuck(f"{stopped}; {fix}")


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def seed_micro_batch(number: int, step: int, micro_batch: int) -> None:
    """Start every random generator for one micro-batch of one step, alike on any process."""
    drawn = int(np.random.SeedSequence((number, step, micro_batch)).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(drawn)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(drawn)
    np.random.seed(drawn % 2**32)
    random.seed(drawn)


def _scale(grads: list[Tensor], norm: float, count: int, clip: float | None) -> None:
    """From the gradients of a sum to those of the mean, bounded by ``clip``: one pass for both."""
    bound = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    if grads:  # torch refuses an empty list
        torch._foreach_mul_(grads, bound / count)

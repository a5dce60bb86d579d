"""The same run again? What run.json must share with a run that is resumed, and how a run that ended
gets more steps."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ..core.config import serial
from ..core.config.run import Constant, InverseSqrt, Train
from ..core.errors import UserError, need
from ..core.training.loop import State
from ..scale.shared_batches import mesh_of
from . import run_checkpoints
from .run_config import Run

MAY_CHANGE_ON_RESUME = (
    "device",
    "early_stop",
    "evaluate_every",
    "save_every",
    "keep",
    "save_at",
    "sample_every",
    "tensorboard",
)
"""Fields of Train that change where it runs and what is seen and kept: a resumed run may change
them."""


def previous_run(settings: Run, out: Path, resume: bool) -> dict[str, Any]:
    """Reads run.json of the run that is being resumed; empty for a new one.

    Raises UserError where there is a run and none was to be resumed, or none, or one with other
    settings.
    """
    if not (out / "run.json").exists() and not run_checkpoints.steps(out):
        need(
            not resume, f"{out} holds no run to go on with; leave out --resume to begin one there."
        )
        return {}
    need(
        resume,
        f"{out} holds a run already; add --resume to go on with it, or choose another folder.",
    )
    before: dict[str, Any] = run_checkpoints.read_json(out / "run.json")
    recipe, new_recipe = (
        dict(table or {}).get("recipe") for table in (before.get("asked"), settings.model)
    )
    if recipe and new_recipe:  # said before what follows from it
        must_be_same(recipe, new_recipe, out, "recipe")
    _extend(before, settings.train, out)
    for name, settings_table in (("data", settings.data), ("train", settings.train)):
        saved = dict(before.get(name) or {})
        # a setting that is younger than the run has its default
        with contextlib.suppress(UserError):
            saved = serial.to_dict(serial.from_dict(type(settings_table), saved))
        free = dict.fromkeys(MAY_CHANGE_ON_RESUME)
        must_be_same({**saved, **free}, {**serial.to_dict(settings_table), **free}, out, name)
    return before


def must_be_same(saved: Any, current: Any, out: Path, name: str) -> None:
    """UserError that names the first setting in which a run differs from the one in ``out``."""
    differs = run_checkpoints.difference(saved, json.loads(json.dumps(current)), name)
    need(
        differs is None,
        f"{out} cannot be resumed with another config: {differs}; set it back or choose "
        "another --out.",
    )


def _extend(before: dict[str, Any], train_config: Train, out: Path) -> None:
    """Let a run that ended, after its steps or early, go on with more: ``before`` then has them,
    and a sentence."""
    train = dict(before.get("train") or {})
    newest = run_checkpoints.newest(out)
    steps = train.get("steps")
    if not isinstance(steps, int) or train_config.steps == steps:
        return
    need(
        train_config.steps > steps,
        f"{out} cannot be resumed with another config: train.steps is {steps} there and "
        f"{train_config.steps} here, and steps can only be raised; set it back or "
        "choose another --out.",
    )
    step = run_checkpoints.number(newest) if newest else 0
    ended, early = before.get("ended", []), False
    if newest and step < steps:
        best = run_checkpoints.read_json(newest / "state.json").get("best_step")
        early = is_stale(
            step, best, ended, train.get("early_stop", 0), train.get("evaluate_every", 0)
        )
    need(
        early or step == steps,
        f"{out} stands at step {step} of {steps}; give --steps {steps} to finish that "
        f"first, then --steps {train_config.steps}.",
    )
    before |= {"train": {**train, "steps": train_config.steps}, "ended": [*ended, step]}
    schedule, name = train_config.schedule, type(train_config.schedule).__name__
    goes_on = f"{name} begins anew for the {train_config.steps - step:,} added steps"
    if isinstance(schedule, Constant | InverseSqrt):  # as ``factor_in_extended_run`` computes it
        goes_on = f"the rate goes on as {name} has it"
    before["extended"] = (
        f"The run had ended at step {step:,} and goes on to {train_config.steps:,}: {goes_on}."
    )


def is_stale(step: int, best: int | None, ended: Any, early_stop: int, evaluate_every: int) -> bool:
    """True if a run ends early: ``early_stop`` evaluations in a row brought no lower validation
    loss than the ``best``.

    They are counted anew where a run that had ``ended`` was given more steps.
    """
    if not early_stop or not evaluate_every or best is None:
        return False
    return bool(step - max(best, *ended, 0) >= early_stop * evaluate_every)


def restore_newest(out: Path, start: Path, state: State, train_config: Train) -> None:
    """Take up the newest checkpoint; where it is damaged, say how to go on from the one before.

    A process that was killed while it removed old checkpoints left more than ``train.keep``: that
    is done now.
    """
    try:
        run_checkpoints.restore(start, state)
    except UserError as error:
        older = [path for path in run_checkpoints.steps(out) if path != start]
        if not older:
            raise
        raise UserError(
            f"{error} To go on from {older[-1].name} instead, remove {start}."
        ) from None
    run_checkpoints.point(out, state)
    if mesh_of(state).is_first:
        run_checkpoints.rotate(out, train_config.keep, train_config.save_at)

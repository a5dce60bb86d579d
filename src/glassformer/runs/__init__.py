"""Runs: a run file is planned, then launched; its folder keeps what came of it.

    run_config run_file settings   a run file, and what a command line changes in it. No torch
    plan defaults          a run file resolved; the settings that nobody gave. No torch
    launch resume prepare report   a run in its folder
    hooks progress run_checkpoints signals   what consumes steps
    history                a run's folder read back: curves, samples. No torch
    compare                several runs under one budget
    processes              a run on several processes

Names are imported on first use: torch is slow.
"""

# ruff: noqa: F401
from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..core.errors import need
from ..core.files import lazily

if TYPE_CHECKING:
    from ..core.config.objective import Objective
    from ..core.config.run import Train
    from ..core.nn import Model
    from ..core.training import Batch, State, TrainStep
    from ..fast.training.execution import ExecutionSettings
    from .defaults import choose
    from .history import TrainingLog, training_log
    from .launch import RunResult, run
    from .plan import RunPlan, plan_run
    from .run_checkpoints import average
    from .run_config import Run

_HOME = {
    "run_checkpoints": "average",
    "defaults": "choose",
    "history": "TrainingLog training_log",
    "launch": "RunResult run",
    "plan": "RunPlan plan_run",
}
__all__ = ["train", *" ".join(_HOME.values()).split()]
__getattr__, _ = lazily(
    __name__, {name: f".{home}" for home, names in _HOME.items() for name in names.split()}
)


@overload
def train(
    model: Model,
    batches: Iterator[Batch],
    objective: Objective | None = None,
    settings: Train | None = None,
    *,
    state: State | None = None,
    execution: ExecutionSettings | None = None,
) -> Iterator[TrainStep]: ...


@overload
def train(
    model: str | Path | Run,
    *,
    out: str | Path,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> RunResult: ...


def train(model: Any, *args: Any, **named: Any) -> Any:
    """Train a ``model`` on batches, as a generator of steps (``loop.train``); or run a run file in
    the folder ``out``.

    ``train("runs/demo.toml", out="out/demo")`` is ``glassformer train runs/demo.toml --out
    out/demo``: the first argument is a run file's path or name, or a ``Run``; ``overrides`` are as
    on the command line, ``{"steps": 500}``. It prints to standard error as the command does, and
    returns how the run ended.
    """
    from .run_config import Run
    from .run_file import read_run

    if not isinstance(model, str | Path | Run):
        from ..core.training import train as steps

        return steps(model, *args, **named)

    def run_file(
        out: str | Path, resume: bool = False, overrides: Mapping[str, Any] | None = None
    ) -> RunResult:
        from .launch import run

        settings = model if isinstance(model, Run) else read_run(model, overrides)
        overrides_apply = settings is not model or not overrides
        need(overrides_apply, "A Run is changed with dataclasses.replace; leave overrides out.")
        return run(settings, Path(out), resume)

    return run_file(*args, **named)

"""Training: a generator of steps, and the hooks that consume them; a run file is planned, then
launched.

    plan defaults                                  a run file resolved; the settings that nobody gave. No torch
    launch resume prepare report                   a run in its folder
    loop optimizer schedule precision loss         one step
    objectives                                     what is learned, a page each
    hooks progress routing run_checkpoints         what consumes steps
    history                                        a run's folder read back: curves, samples. No torch
    batches packing encoded                        batches
    execution memory                               number format, compiling, time and memory
    compare                                        several runs under one budget

Names are imported on first use: torch is slow.
"""

# ruff: noqa: F401
# mypy: implicit-reexport
from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ..errors import need
from ..files import lazily

if TYPE_CHECKING:
    from ..config.objective import Objective
    from ..config.run import Run, Train
    from ..nn import Model
    from .batches import Batch, Batches, every_token_once
    from .defaults import choose
    from .execution import ExecutionSettings, choose_execution
    from .history import TrainingLog, training_log
    from .launch import RunResult, run
    from .loop import State, Step
    from .loss import Loss
    from .objectives import Causal
    from .optimizer import Optimizer
    from .plan import RunPlan, plan_run
    from .run_checkpoints import average
    from .schedule import factor

_HOME = {
    "batches": "Batch Batches every_token_once",
    "run_checkpoints": "average",
    "defaults": "choose",
    "execution": "ExecutionSettings choose_execution",
    "history": "TrainingLog training_log",
    "launch": "RunResult run",
    "loop": "State Step",
    "loss": "Loss",
    "objectives": "Causal Objective",
    "optimizer": "Optimizer",
    "plan": "RunPlan plan_run",
    "schedule": "factor",
}
__all__ = ["train", *" ".join(_HOME.values()).split()]
_load, _ = lazily(
    __name__, {name: f".{home}" for home, names in _HOME.items() for name in names.split()}
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _load(name)
    if not name.startswith("_"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@overload
def train(
    model: Model,
    batches: Iterator[Batch],
    objective: Objective | None = None,
    settings: Train | None = None,
    *,
    state: State | None = None,
    execution: ExecutionSettings | None = None,
) -> Iterator[Step]: ...


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
    from ..config.run import Run
    from ..config.run_file import read_run

    if not isinstance(model, str | Path | Run):
        from .loop import train as steps

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

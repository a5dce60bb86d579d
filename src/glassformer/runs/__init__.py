"""Runs: a run file is planned, then launched; its folder keeps what came of it.

    run_config run_file settings   a run file, and what a command line changes in it. No torch
    run_plan defaults          a run file resolved; the settings that nobody gave. No torch
    launch resume prepare report   a run in its folder
    callbacks progress run_checkpoints signals   what consumes steps
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
    from .prepared import Prepared
    from .run_checkpoints import average
    from .run_config import Run
    from .run_plan import RunPlan, plan_run

_HOME = {
    "run_checkpoints": "average",
    "defaults": "choose",
    "history": "TrainingLog training_log",
    "launch": "RunResult run",
    "prepared": "Prepared",
    "run_plan": "RunPlan plan_run",
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


def train(
    model: Any,
    batches: Any = None,
    objective: Any = None,
    settings: Any = None,
    *,
    state: Any = None,
    execution: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> Any:
    """Trains a model on batches as a generator of steps, or a run file in a folder.

    A run file is trained as the command ``glassformer train`` trains it.

    Args:
        model: A model, or a run file's path, or a ``Run``.
        batches: The batches that a model is trained on.
        objective: What the model learns; None is the next token.
        settings: Steps, optimizer and schedule (``config.run.Train``).
        state: A state to go on from.
        execution: Number format and compiling; None computes as the model is.
        out: The folder of a run file's run.
        resume: Go on with the run in ``out``.
        overrides: Settings of a run file to change, such as ``{"steps": 500}``.

    Returns:
        Of a model the steps as they are made; of a run file how the run ended.

    Raises:
        UserError: The run file or a setting is wrong, or ``out`` holds another run.

    Example:
        >>> result = glassformer.train("runs/demo.toml", out="out/demo")
        >>> print(result.step, result.valid_loss)
    """
    from .run_config import Run
    from .run_file import read_run

    if not isinstance(model, str | Path | Run):
        from ..core.training import train as steps
        from .prepared import Prepared

        is_prepared = objective is None or not objective.prepares or isinstance(batches, Prepared)
        need(
            is_prepared,
            f"{type(objective).__name__} changes each batch before it is learned; give "
            "glassformer.runs.Prepared(batches, objective, tokenizer, seed) as batches.",
        )
        return steps(model, batches, objective, settings, state=state, execution=execution)
    from .launch import run

    need(out is not None, "A run file is trained in a folder; give out.")
    need(
        not isinstance(model, Run) or not overrides,
        "A Run is changed with dataclasses.replace; leave overrides out.",
    )
    config = model if isinstance(model, Run) else read_run(model, overrides)
    return run(config, Path(str(out)), resume)

"""``glassformer cost``: parameters, FLOPs and memory, from the config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import UserError, nearest, need
from .common import text_table
from .parsing import CommandOutput, Count, Words, split_settings

if TYPE_CHECKING:
    from ..core.config import Model
    from ..runs.run_plan import RunPlan
    from ..scale.layout import Layout

EXAMPLES = (
    "glassformer cost glass/1m --batch 16",
    "glassformer cost glass/1m --decoder.depth 8",
    "glassformer cost runs/demo.toml --json",
    "glassformer cost runs/demo.toml --processes 4",
)
USAGE = (
    "glassformer cost NAME|RUN.toml [--batch N] [--context N] [--processes N] [--json] [--use "
    "FILE] [--NAME VALUE ...]"
)
EPILOG = (
    "NAME is a recipe or a folder. Settings have the same names as in train: --decoder.depth 8."
)


def run(
    *settings: str,
    batch: Count | None = None,
    context: Count | None = None,
    processes: Count | None = None,
    use: Words = (),
) -> CommandOutput:
    """Computes parameters, FLOPs and memory from the config alone.

    batch N: rows in a batch; with a run file, split into train.accumulate micro-batches
    context N: tokens in a row (the model's context)
    processes N: memory and traffic of each of N processes that share a run file
    """
    from dataclasses import replace

    from ..runs import run_file
    from ..scale.cost import cost

    name, changes = split_settings(settings)
    if name is None:
        raise UserError("Give a recipe, a folder or a run file; see glassformer cost --help.")
    plan = None
    if name.endswith(".toml"):
        from ..runs.run_plan import plan_run

        plan = plan_run(run_file.read_run(name, changes))
        train = plan.settings.train
        # rows of a micro-batch, as in a training
        estimate = replace(
            plan.cost,
            batch=-(-(batch or train.batch) // train.accumulate),
            context=context or plan.context,
        )
    else:
        estimate = cost(_changed_config(name, changes), batch or 1, context)
    numbers, rows = estimate.to_dict(), estimate.table()
    if processes is not None:
        if plan is None:
            raise UserError(
                "--processes needs a run file with the batch and its micro-batches; give one."
            )
        for layout in _layouts(plan, processes):
            numbers["layout"] = layout.to_dict()
            # what is held and sent differs
            rows += layout.rows()[3 if layout.dtype == "bf16" else 0 :]
    return CommandOutput(numbers, text_table.lines(rows))


def _layouts(plan: RunPlan, processes: int) -> list[Layout]:
    """The run on so many processes, in fp32 and in bf16."""
    from ..core.config.run import Muon
    from ..scale.cost import cost
    from ..scale.layout import Layout, micro_batches_for
    from ..scale.parallel import AXES

    train, parallel = plan.settings.train, plan.settings.parallel.of(processes)
    accumulate = micro_batches_for(train.accumulate, parallel)
    need(
        accumulate <= train.batch,
        f"train.batch is {train.batch} rows, too few for {accumulate} micro-batches, a multiple of "
        "the processes; raise it.",
    )
    if any(parallel.size(axis) > 1 for axis in AXES if axis not in ("data", "replicate")):
        from ..runs.processes import check
        from ..scale.mesh import Mesh

        check(train, plan.model, Mesh(parallel))
    estimate = cost(plan.model, -(-train.batch // accumulate), plan.context)
    muon = isinstance(train.optimizer, Muon)
    return [Layout(estimate, parallel, accumulate, dtype, muon) for dtype in ("fp32", "bf16")]


def _changed_config(name: str, changes: dict[str, str]) -> Model:
    """The config of a recipe or folder with these changes; UserError for a setting that its model
    does not have."""
    from ..core.config import serial
    from ..formats.checkpoint import Checkpoint
    from ..runs import settings as known

    model = Checkpoint.open(name).config
    paths = {path.removeprefix("model."): value for path, value in changes.items()}
    for path in paths:
        if not hasattr(model, path.partition(".")[0]):
            meant = nearest(path, ["batch", "context", "json", "use", *known.paths()])
            raise UserError(f"--{path} is not understood.{meant}")
    return serial.change(model, paths)

"""``glassformer cost``: parameters, FLOPs and memory, from the config alone."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError, nearest, need
from .common import add_use_option, print_result
from .parsing import split_settings

if TYPE_CHECKING:
    from ..config import Model
    from ..parallel.layout import Layout
    from ..training.plan import RunPlan

EXAMPLES = (
    "glassformer cost glass/1m --batch 16",
    "glassformer cost glass/1m --decoder.depth 8",
    "glassformer cost runs/demo.toml --json",
    "glassformer cost runs/demo.toml --processes 4",
)
OPEN = True  # settings are those of train
USAGE = (
    "glassformer cost NAME|RUN.toml [--batch N] [--context N] [--processes N] [--json] [--use "
    "FILE] [--NAME VALUE ...]"
)
EPILOG = (
    "NAME is a recipe or a folder. Settings of the model, and of a run file, as train takes "
    "them: --decoder.depth 8."
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--batch",
        type=int,
        metavar="N",
        help="rows in a batch; a run file computes it in train.accumulate pieces",
    )
    add("--context", type=int, metavar="N", help="tokens in a row (the model's context)")
    add(
        "--processes",
        type=int,
        metavar="N",
        help="a run file on so many processes: what each holds and receives",
    )
    add("--json", action="store_true", help="as JSON")
    add_use_option(parser)


def run(args: argparse.Namespace) -> None:
    from ..config import run_file
    from ..cost import cost

    for name in ("batch", "context", "processes"):
        value = getattr(args, name)
        need(value is None or value >= 1, f"--{name} is {value}; give 1 or more.")
    named, changes = split_settings(args.extra)
    if named is None:
        raise UserError("Give a recipe, a folder or a run file; see glassformer cost --help.")
    if named.endswith(".toml"):
        from ..training.plan import plan_run

        plan = plan_run(run_file.read_run(named, changes))
        train, context = plan.settings.train, args.context or plan.context
        # rows of a piece, as in a training
        model, batch = plan.model, -(-(args.batch or train.batch) // train.accumulate)
    else:
        model, batch, context = _changed_config(named, changes), args.batch or 1, args.context
    estimate = cost(model, batch, context)
    numbers, rows = estimate.to_dict(), estimate.table()
    if args.processes is not None:
        need(
            named.endswith(".toml"),
            "--processes is for a run file, which says the batch and its pieces; give one.",
        )
        for layout in _layouts(plan, args.processes):
            numbers["layout"] = layout.to_dict()
            # what is held and sent differs
            rows += layout.rows()[3 if layout.dtype == "bf16" else 0 :]
    print_result(args.json, numbers, rows)


def _layouts(plan: RunPlan, processes: int) -> list[Layout]:
    """The run on so many processes, in fp32 and in bf16."""
    from ..config.parallel import AXES
    from ..config.run import Muon
    from ..cost import cost
    from ..parallel.layout import Layout, pieces_for

    train, parallel = plan.settings.train, plan.settings.parallel.of(processes)
    pieces = pieces_for(train.accumulate, parallel)
    few = (
        f"train.batch is {train.batch} rows, too few for {pieces} pieces, a multiple of the "
        "processes; raise it."
    )
    need(pieces <= train.batch, few)
    if any(parallel.size(axis) > 1 for axis in AXES if axis not in ("data", "replicate")):
        from ..parallel.mesh import Mesh
        from ..training.processes import check

        check(train, plan.model, Mesh(parallel))
    estimate = cost(plan.model, -(-train.batch // pieces), plan.context)
    muon = isinstance(train.optimizer, Muon)
    return [Layout(estimate, parallel, pieces, dtype, muon) for dtype in ("fp32", "bf16")]


def _changed_config(name: str, changes: dict[str, str]) -> Model:
    """The config of a recipe or folder with these changes; UserError for a setting that its model
    does not have."""
    from ..checkpoints import Checkpoint
    from ..config import serial
    from ..config import settings as known

    model = Checkpoint.open(name).config
    paths = {path.removeprefix("model."): value for path, value in changes.items()}
    for path in paths:
        if not hasattr(model, path.partition(".")[0]):
            meant = nearest(path, ["batch", "context", "json", "use", *known.paths()])
            raise UserError(f"--{path} is not understood.{meant}")
    return serial.change(model, paths)

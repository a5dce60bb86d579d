"""``glassformer cost``: parameters, FLOPs and memory, from the config alone."""

from __future__ import annotations

import argparse

from ..errors import UserError
from .common import result, using

EXAMPLES = (
    "glassformer cost glass/1m --batch 16",
    "glassformer cost runs/demo.toml --json",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("name", metavar="NAME|RUN.toml", help="a recipe, a folder or a run file")
    one.add_argument("--batch", type=int, metavar="N", help="rows in a batch")
    one.add_argument("--context", type=int, metavar="N", help="tokens in a row (the model's context)")
    one.add_argument("--json", action="store_true", help="as JSON")
    using(one)


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from ..checkpoints import Checkpoint
    from ..config import run_file
    from ..cost import cost

    for name in ("batch", "context"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; give 1 or more.")
    if given.name.endswith(".toml"):
        from ..training.plan import plan_run

        plan = plan_run(run_file.read(given.name))
        model, batch, context = plan.model, given.batch or plan.settings.train.batch, given.context or plan.context
    else:
        model, batch, context = Checkpoint.open(given.name).config, given.batch or 1, given.context
    found = cost(model, batch, context)
    result(given.json, found.to_dict(), found.table())

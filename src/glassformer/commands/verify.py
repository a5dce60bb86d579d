"""``glassformer verify``: a model computed in every way there is, each held to the plain pass."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import need
from .common import MODEL, computing, counted, emit, loaded, untrained

EXAMPLES = (
    "glassformer verify out/mine",
    "glassformer verify gpt2/124m --against hf",
    "glassformer verify out/mine --dtype bfloat16 --json",
)
EPILOG = (
    "The exit code is 1 where a check fails, and the first value that differs is named by "
    "its address."
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument(
        "--against",
        choices=("hf",),
        help="compare with transformers too, where it knows the layout",
    )
    one.add_argument(
        "--tokens",
        type=int,
        default=16,
        metavar="N",
        help="tokens that continue each of 3 texts (16)",
    )
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    one.add_argument(
        "--compile",
        action="store_true",
        help="try torch.compile too; on a CPU it takes a minute more",
    )
    computing(one)
    one.add_argument("--json", action="store_true", help="every check as JSON, once all are done")


def run(given: argparse.Namespace) -> int:
    """The command; 1 where a check fails."""
    from .. import inspection
    from ..inspection.agreement import Check

    need(given.tokens > 0, f"--tokens is {given.tokens}; give 1 or more.")
    model, tokenizer = loaded(given)
    untrained(given.model)
    how: dict[str, Any] = {"new": given.tokens, "seed": given.seed, "compile": given.compile}
    checks: list[Check] = []
    for check in inspection.verify(
        model, tokenizer, against=given.against and published(given.model), **how
    ):
        if not given.json:
            if not checks:
                print(Check.heading())
            print(check.line(), flush=True)
        checks.append(check)
    count = {
        status: sum(check.status == status for check in checks)
        for status in ("pass", "FAIL", "not run")
    }
    if given.json:
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        said = {"model": given.model, "dtype": kind, "passed": not count["FAIL"]}
        emit({**said, "checks": [check.to_dict() for check in checks]})
    else:
        print(
            f"{counted(count['pass'], 'check')} passed, {count['FAIL']} failed, "
            f"{count['not run']} not run"
        )
    return 1 if count["FAIL"] else 0


def published(name: str) -> str | Path:
    """The folder that transformers can read as it is, else "hf": the model is saved for it."""
    from ..checkpoints import Checkpoint

    found = Checkpoint.open(name)
    return (
        found.folder
        if found.folder is not None and found.recipe is not None and found.base is None
        else "hf"
    )

"""``glassformer verify``: a model computed in every way there is, each held to the plain pass."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import need
from .common import (
    MODEL_HELP,
    add_device_options,
    count_noun,
    load_model,
    note_untrained,
    print_json,
)

EXAMPLES = (
    "glassformer verify out/mine",
    "glassformer verify gpt2/124m --against hf",
    "glassformer verify out/mine --dtype bfloat16 --json",
)
EPILOG = (
    "The exit code is 1 where a check fails, and the first value that differs is named by "
    "its address."
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--against",
        choices=("hf",),
        help="compare with transformers too, where it knows the layout",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=16,
        metavar="N",
        help="tokens that continue each of 3 texts (16)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="try torch.compile too; on a CPU it takes a minute more",
    )
    add_device_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="every check as JSON, once all are done"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command; 1 where a check fails."""
    from .. import inspection
    from ..inspection.agreement import Check

    need(args.tokens > 0, f"--tokens is {args.tokens}; give 1 or more.")
    model, tokenizer = load_model(args)
    note_untrained(args.model)
    options: dict[str, Any] = {"new": args.tokens, "seed": args.seed, "compile": args.compile}
    checks: list[Check] = []
    for check in inspection.verify(
        model, tokenizer, against=args.against and reference_source(args.model), **options
    ):
        if not args.json:
            if not checks:
                print(Check.heading())
            print(check.line(), flush=True)
        checks.append(check)
    count = {
        status: sum(check.status == status for check in checks)
        for status in ("pass", "FAIL", "not run")
    }
    if args.json:
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        summary = {"model": args.model, "dtype": kind, "passed": not count["FAIL"]}
        print_json({**summary, "checks": [check.to_dict() for check in checks]})
    else:
        print(
            f"{count_noun(count['pass'], 'check')} passed, {count['FAIL']} failed, "
            f"{count['not run']} not run"
        )
    return 1 if count["FAIL"] else 0


def reference_source(name: str) -> str | Path:
    """The folder that transformers can read as it is, else "hf": the model is saved for it."""
    from ..checkpoints import Checkpoint

    checkpoint = Checkpoint.open(name)
    return (
        checkpoint.folder
        if checkpoint.folder is not None
        and checkpoint.recipe is not None
        and checkpoint.base is None
        else "hf"
    )

"""``glassformer verify``: a model computed in every way there is, each held to the plain pass."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .common import count_noun
from .options import ModelOptions
from .parsing import Count, print_json

EXAMPLES = (
    "glassformer verify tiny",
    "glassformer verify gpt2/124m --against hf",
    "glassformer verify out/mine --dtype bfloat16 --json",
)
EPILOG = (
    "If a check fails, the exit code is 1 and the output names the address of the first "
    "differing value."
)


def run(
    options: ModelOptions,
    *,
    against: Literal["hf"] | None = None,
    tokens: Count = 16,
    seed: int = 0,
    compile: bool = False,
    json: bool = False,
) -> int:
    """Checks a model against the plain pass; 1 where a check fails.

    against: also compare with transformers, if it supports the layout
    tokens N: tokens that continue each of 3 texts
    compile: also check torch.compile; on a CPU this takes a minute more
    json: every check as JSON, once all are done
    """
    from .. import sight as inspection
    from ..sight.agreement import Check

    model, tokenizer = options.load()
    options.note_untrained()
    checks: list[Check] = []
    for check in inspection.verify(
        model,
        tokenizer,
        against=against and reference_source(options.model),
        new=tokens,
        seed=seed,
        compile=compile,
    ):
        if not json:
            if not checks:
                print(Check.heading())
            print(check.line(), flush=True)
        checks.append(check)
    count = {
        status: sum(check.status == status for check in checks)
        for status in ("pass", "FAIL", "not run")
    }
    if json:
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        summary = {"model": options.model, "dtype": kind, "passed": not count["FAIL"]}
        print_json({**summary, "checks": [check.to_dict() for check in checks]})
    else:
        print(
            f"{count_noun(count['pass'], 'check')} passed, {count['FAIL']} failed, "
            f"{count['not run']} not run"
        )
    return 1 if count["FAIL"] else 0


def reference_source(name: str) -> str | Path:
    """The folder that transformers can read as it is, else "hf": the model is saved for it."""
    from ..formats.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(name)
    if checkpoint.folder is None or checkpoint.recipe is None or checkpoint.base is not None:
        return "hf"
    return checkpoint.folder

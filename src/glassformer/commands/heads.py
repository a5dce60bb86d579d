"""``glassformer heads``: what each attention head does, as numbers beside a baseline."""

from __future__ import annotations

from dataclasses import asdict

from .options import ModelOptions
from .parsing import CommandOutput, Count

EXAMPLES = (
    "glassformer heads tiny",
    "glassformer heads tiny --sort induction --top 5",
    "glassformer heads out/induction --over-time",
)


def run(
    options: ModelOptions,
    *,
    sort: str | None = None,
    top: Count | None = None,
    draws: int = 8,
    length: int = 32,
    seed: int = 0,
    over_time: bool = False,
) -> CommandOutput:
    """Scores every attention head on repeated random tokens.

    sort SCORE: sort by a score: previous, induction, duplicate, first, norm ..
    top N: show only the first N
    draws N: random texts to measure on
    length L: tokens of each text, repeated once
    over_time: MODEL is a run's folder; one score (--sort, by default induction) of the first N heads
        at each checkpoint, beside the loss
    json: every number, with its baseline and deviation, as JSON
    """
    if over_time:
        from ..runs.head_history import head_history

        folder = options.run_folder()
        history = head_history(folder, draws=draws, length=length, seed=seed)
        return CommandOutput(
            lambda: asdict(history), lambda: history.lines(sort or "induction", top or 4)
        )
    from .. import sight as inspection

    model, tokenizer = options.load()
    options.note_untrained()
    scores = inspection.head_scores(model, tokenizer, draws=draws, length=length, seed=seed)
    scores = scores.sorted(sort) if sort else scores
    if top is not None:
        scores = scores.first(top)
    ending = (
        f"{scores.length} random tokens twice, {scores.draws} draws; the weight on the first token "
        "is taken away first. "
        "A label is a score more than 3 deviations above its baseline: not what the head is for."
    )
    return CommandOutput(scores.to_dict, scores.table, ending=ending)

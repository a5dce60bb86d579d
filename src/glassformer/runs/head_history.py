"""Scores of attention heads over a run's checkpoints, beside the losses of its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import need
from ..formats import store
from ..sight.figures.charts import TableFigure
from ..sight.heads import HeadReport, head_scores, highest, short
from .history import read_log
from .replay import checkpoints


@dataclass(frozen=True)
class HeadsAtStep:
    """Scores of all heads in the checkpoint of one step; ``loss`` is of the step's batch,
    ``valid_loss`` None where the run did not validate."""

    step: int
    loss: float | None
    valid_loss: float | None
    heads: list[HeadReport]


@dataclass(frozen=True)
class HeadHistory:
    """Scores of each head at the ``steps`` of a run's checkpoints, in order."""

    steps: list[HeadsAtStep]

    def lines(self, score: str = "induction", count: int = 4) -> list[str]:
        """A line for each step with the heads that end highest; a star is a score above its
        baseline by more than 3 deviations."""
        last = self.steps[-1].heads
        shown = {f"{x.path}[{x.head}]": last.index(x) for x in highest(last, score)[:count]}
        rows = [
            (
                str(x.step),
                x.loss,
                x.valid_loss,
                *(_cell(x.heads[at], score) for at in shown.values()),
            )
            for x in self.steps
        ]
        return TableFigure("", ("step", "loss", "validation", *shown), rows, (), ".3f").lines()


def _cell(head: HeadReport, score: str) -> str:
    text = short(head.scores.get(score))
    if text == "-":
        return text
    return f"{text}{'*' if score in head.labels else ' '}"


def head_history(folder: str | Path, **options: Any) -> HeadHistory:
    """Scores every attention head at each checkpoint of a run, beside the run's losses.

    Args:
        folder: The folder of the run.
        **options: The ``draws``, ``length`` and ``seed`` of ``glassformer.head_scores``.

    Returns:
        The scores by step, those of replayed steps among them.

    Raises:
        UserError: The folder holds no checkpoint, or the model has no heads.

    Example:
        >>> print("\\n".join(glassformer.head_history("out/mine", draws=2, length=8).lines()))
    """
    path = Path(folder).expanduser()
    log = {line["step"]: line for line in read_log(path / "log.jsonl")}
    moments = []
    for step, checkpoint in checkpoints(path).items():
        heads = head_scores(*store.load(checkpoint), **options).heads
        line = log.get(step, {})
        moments.append(HeadsAtStep(step, line.get("loss"), line.get("valid_loss"), heads))
    need(bool(moments), f"{path} holds no checkpoint; give the folder of a run.")
    return HeadHistory(moments)

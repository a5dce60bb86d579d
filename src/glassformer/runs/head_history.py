"""Scores of attention heads over a run's checkpoints, beside the losses of its log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import need
from ..fast import device as devices
from ..formats import store
from ..sight.figures.charts import Chart, Curves, TableFigure
from ..sight.figures.shown import Records, Shown
from ..sight.heads import SCORES, HeadReport, head_scores
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


@dataclass(frozen=True, repr=False)
class HeadHistory(Shown):
    """Scores of each head at the ``steps`` of a run's checkpoints, in order."""

    folder: str
    steps: list[HeadsAtStep]

    @property
    def title(self) -> str:
        return f"Heads of {self.folder} over {len(self.steps)} checkpoints"

    def highest(self, score: str, count: int) -> list[int]:
        """The heads that score highest in the last checkpoint, as places in ``heads``."""
        need(score in SCORES, f'There is no score "{score}"; give one of {", ".join(SCORES)}.')
        last = [head.scores.get(score) for head in self.steps[-1].heads]
        places = [place for place, value in enumerate(last) if value is not None]
        return sorted(places, key=lambda place: -(last[place] or 0.0))[:count]

    def since(self, score: str, place: int) -> int | None:
        """The first step from which on a head stays above its baseline; None where it ends below."""
        first = None
        for moment in reversed(self.steps):
            if score not in moment.heads[place].labels:
                break
            first = moment.step
        return first

    def name(self, place: int) -> str:
        head = self.steps[-1].heads[place]
        return f"{head.path}[{head.head}]"

    def charts(self) -> Iterator[Chart]:
        """The induction scores of the highest heads, then the losses."""
        steps = [moment.step for moment in self.steps]
        lines = {
            self.name(at): (steps, [m.heads[at].scores["induction"] or 0.0 for m in self.steps])
            for at in self.highest("induction", 4)
        }
        yield Curves("induction", lines, dots=tuple(lines))
        yield self._table()

    def records(self) -> Records:
        """A row for each step, head and score."""
        names = ("step", "loss", "valid_loss", "attention", "head", "score", "value", "label")
        return names, [
            (x.step, x.loss, x.valid_loss, head.path, head.head, score, value, score in head.labels)
            for x in self.steps
            for head in x.heads
            for score, value in head.scores.items()
        ]

    def _table(self, score: str = "induction", count: int = 4) -> TableFigure:
        """A line for each step; a star is a score above its baseline."""
        places = self.highest(score, count)
        rows = [
            (
                f"{moment.step:,}",
                moment.loss,
                moment.valid_loss,
                *(_cell(moment.heads[place], score) for place in places),
            )
            for moment in self.steps
        ]
        heading = ("step", "loss", "validation", *map(self.name, places))
        return TableFigure("", heading, rows, (), ".3f")

    def lines(self, score: str = "induction", count: int = 4) -> list[str]:
        """The table, and from which step on each head has its label."""
        firsts = [(self.name(at), self.since(score, at)) for at in self.highest(score, count)]
        return [
            *self._table(score, count).lines(),
            "",
            *(
                f"{name}: {score} above its baseline from step {first:,} on."
                for name, first in firsts
                if first is not None
            ),
        ]


def _cell(head: HeadReport, score: str) -> str:
    value = head.scores.get(score)
    return "-" if value is None else f"{value:.3f}{'*' if score in head.labels else ' '}"


def head_history(
    folder: str | Path,
    *,
    draws: int = 8,
    length: int = 32,
    seed: int = 0,
    device: str | None = None,
) -> HeadHistory:
    """Scores every attention head at each checkpoint of a run, beside the run's losses.

    Args:
        folder: The folder of the run.
        draws: Draws of random tokens, the same ones for each checkpoint.
        length: Tokens that are drawn and repeated, at most half the context.
        seed: The seed of the draws.
        device: The device that computes; None is the GPU where there is one.

    Returns:
        The scores by step, those of replayed steps among them.

    Raises:
        UserError: The folder holds no checkpoint, or the model has no heads.

    Example:
        >>> print("\\n".join(glassformer.head_history("out/mine", draws=2, length=8).lines()))
    """
    path = Path(folder).expanduser()
    steps = checkpoints(path)
    need(
        bool(steps), f"{path} holds no checkpoint; give the folder of a run (--save-at keeps more)."
    )
    log = {line["step"]: line for line in read_log(path / "log.jsonl")}
    moments = []
    for step, checkpoint in steps.items():
        model, tokenizer = store.load(checkpoint, device=devices.find(device))
        scores = head_scores(model, tokenizer, draws=draws, length=length, seed=seed)
        line = log.get(step, {})
        moments.append(HeadsAtStep(step, line.get("loss"), line.get("valid_loss"), scores.heads))
    return HeadHistory(str(folder), moments)

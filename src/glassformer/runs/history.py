"""The history of a training, read from its folder: curves and samples that show themselves.
No torch here."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core import files
from ..core.errors import UserError
from ..sight.figures.charts import Chart, Curves, Folded, TableFigure
from ..sight.figures.drawing import Array
from ..sight.figures.shown import Shown

SAMPLES = 8  # of what the model wrote on its way
LOSS_LABELS = {"loss": "training", "valid_loss": "validation"}
APART = ("step", "tokens", "seconds", "epoch", *LOSS_LABELS)


@dataclass(frozen=True, repr=False)
class TrainingLog(Shown):
    """A run folder's ``lines`` (a mapping a step), its ``samples`` ({step, text}) and the
    ``settings`` of run.json."""

    folder: Path
    lines: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    settings: dict[str, Any]

    @property
    def title(self) -> str:
        """The folder and how far it is."""
        last = f"{self.lines[-1]['step']:,}" if self.lines else "0"
        steps = (self.settings.get("train") or {}).get("steps")
        return f"{self.folder}, step {last}" + (f" of {steps:,}" if isinstance(steps, int) else "")

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """The steps at which a number was written, and the number."""
        points = [(line["step"], line[name]) for line in self.lines if _is_number(line.get(name))]
        return [step for step, _ in points], [float(value) for _, value in points]

    def columns(self) -> list[str]:
        """The numbers that were written, in the order in which they first came."""
        return list(
            dict.fromkeys(name for line in self.lines for name, x in line.items() if _is_number(x))
        )

    def charts(self) -> Iterator[Chart]:
        """Loss, the other numbers folded, the last of each as a table, what the model wrote."""
        yield Curves(
            "loss, nats",
            {label: self.column(name) for name, label in LOSS_LABELS.items()},
            dots=("validation",),
        )
        names = self.columns()
        last = [(name, f"{self.column(name)[1][-1]:,.6g}") for name in names if name != "step"]
        skipped = [line["step"] for line in self.lines if line.get("skipped")]
        if skipped:
            more = ", .." if skipped[10:] else ""
            last.append(("steps skipped", ", ".join(map(str, skipped[:10])) + more))
        yield TableFigure("the last of each", ("", "value"), last)
        other_charts = [
            Curves(name, {name: self.column(name)}) for name in names if name not in APART
        ]
        if {"tokens", "seconds"} <= set(names):
            timed = [line for line in self.lines if line.get("seconds") and "tokens" in line]
            speed = [line["tokens"] / line["seconds"] for line in timed]
            steps = [line["step"] for line in timed]
            other_charts.append(Curves("tokens a second", {"tokens/s": (steps, speed)}))
        if other_charts:
            yield Folded(", ".join(chart.title for chart in other_charts), other_charts)
        if self.samples:
            rows = [(f"{sample['step']:,}", sample["text"]) for sample in self.samples[-SAMPLES:]]
            yield TableFigure("what it wrote", ("step", "text"), rows, (1,))

    def records(self) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        """A row for each step."""
        names = self.columns()
        return names, ([self._cell(line, name, "") for name in names] for line in self.lines)

    def tensors(self) -> dict[str, Array]:
        """Each number (steps), NaN where none was written."""
        return {
            name: np.array([self._cell(line, name, math.nan) for line in self.lines], float)
            for name in self.columns()
        }

    @staticmethod
    def _cell(line: dict[str, Any], name: str, absent: Any) -> Any:
        """A line's number; ``absent`` where it has none."""
        return line[name] if _is_number(line.get(name)) else absent

    def facts(self) -> Mapping[str, Any]:
        """The run's settings."""
        return {"folder": str(self.folder), "settings": self.settings}


def read_log(path: Path, *texts: str) -> list[dict[str, Any]]:
    """The whole lines of a log, each with its step and these ``texts``; a last one cut short by a
    crash is left out."""
    entries = []
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if (
                    isinstance(entry, dict)
                    and isinstance(entry.get("step"), int)
                    and all(isinstance(entry.get(name), str) for name in texts)
                ):
                    entries.append(entry)
    return entries


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def training_log(folder: str | Path) -> TrainingLog:
    """Reads the log of a run, also while it grows. A notebook shows its curves.

    Args:
        folder: The folder of the run.

    Returns:
        The run's steps and validations.

    Raises:
        UserError: No training has written there.

    Example:
        >>> glassformer.training_log("out/mine")
    """
    path = Path(folder).expanduser()
    if files.path_kind(path / "log.jsonl") != "file":
        hint = files.nearest_path(path) if files.path_kind(path) is None else ""
        raise UserError(
            f"{path} holds no log.jsonl; give the folder that a training writes to.{hint}"
        )
    run_json = path / "run.json"
    settings = files.read_json(run_json) if files.path_kind(run_json) == "file" else {}
    samples = read_log(path / "samples.jsonl", "text")
    return TrainingLog(path, read_log(path / "log.jsonl"), samples, settings)

"""Training as a person sees it: a bar in a terminal, plain lines elsewhere; always on standard
error."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from ..core.errors import note
from ..core.training.loop import TrainStep
from .report import duration

BAR_WIDTH = 24  # columns
TASKS = Path("/proc/self/task")
NOTICEABLE = 0.2  # of the time: threads of one process, too, sometimes wait for each other's core


class Live:
    """Shows loss, validation, tokens a second, the share of the machine's measured peak, and time
    left; ``flops`` are a token's in training."""

    def __init__(self, flops: float = 0.0, peak: float = 0.0, terminal: bool | None = None) -> None:
        self.flops, self.peak = flops, peak
        able = (
            sys.stderr is not None
            and sys.stderr.isatty()
            and os.environ.get("TERM") not in ("dumb", "unknown")
        )
        self.terminal = able if terminal is None else terminal
        self.began = self.shown = time.monotonic()
        self.first: int | None = None  # the step before the first that was seen
        self.losses: list[float] = []
        self.tokens, self.seconds = 0, 0.0  # since the last time shown
        self.speed = 0.0
        self.valid = math.nan
        self.metrics: dict[str, float] = {}  # what else is known of what is held out
        self.screen: Any = None
        self.contention, self.machine = Contention(), ""

    def __enter__(self) -> Live:
        if self.terminal:
            from rich.console import Console

            self.screen = self.bar(Console(stderr=True))
            self.screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.screen is not None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.screen.stop()

    def __call__(self, step: TrainStep) -> None:
        self.first = step.index - 1 if self.first is None else self.first
        self.tokens, self.seconds = self.tokens + step.tokens, self.seconds + step.seconds
        if step.skipped:
            note(f"step {step.index} skipped: {step.skipped}; the weights were left as they were.")
        else:
            # a loss by rewards is 0 at each first ratio of 1, and says nothing
            self.losses.append(step.metrics.get("reward", step.loss))
        if step.valid_loss is not None:
            self.valid = step.metrics.get("valid_reward", step.valid_loss)
            self.metrics = {
                n: f
                for n, f in step.metrics.items()
                if n.startswith("valid_") and n != "valid_reward" and isinstance(f, float)
            }
        waited = time.monotonic() - self.shown
        if (
            step.last
            or waited > (0.5 if self.screen else 10)
            or (step.valid_loss is not None and waited > 1)
        ):
            self.show(step)

    def show(self, step: TrainStep) -> None:
        """Draw the bar, or print a line."""
        self.speed = self.tokens / self.seconds if self.seconds else 0.0
        self.tokens, self.seconds, self.shown = 0, 0.0, time.monotonic()
        self.machine = self.contention.describe()
        numbers = "  ".join(f"{name} {value}" for name, value in self.numbers(step).items())
        if self.screen is None:
            note(f"step {step.index}/{step.steps}  {numbers}")
        else:
            with contextlib.suppress(OSError):
                self.screen.update(
                    0, total=step.steps, completed=step.index, description=numbers, refresh=True
                )

    def numbers(self, step: TrainStep) -> dict[str, str]:
        """The numbers by name, formatted: loss, validation, tokens/s, time left, a machine
        that is shared."""
        done = step.index - (self.first or 0)
        remaining = (time.monotonic() - self.began) / max(1, done) * (step.steps - step.index)
        recent = self.losses[-max(1, min(20, len(self.losses) // 4)) :]
        label = "reward" if "reward" in step.metrics else "loss"
        numbers = {label: f"{sum(recent) / len(recent):.4f}" if recent else "none"}
        if math.isfinite(self.valid):
            numbers["validation"] = f"{self.valid:.4f}"
        numbers |= {
            name.removeprefix("valid_"): f"{fact:.4f}" for name, fact in self.metrics.items()
        }
        numbers["tokens/s"] = f"{self.speed:,.0f}"
        if self.flops and self.peak:
            # it was measured once, perhaps in a busy moment
            self.peak = max(self.peak, self.flops * self.speed)
            numbers["of this machine's peak"] = f"{self.flops * self.speed / self.peak:.0%}"
        return (
            numbers
            | {"left": duration(remaining)}
            | ({"machine": self.machine} if self.machine else {})
        )

    def bar(self, console: Any) -> Any:
        """rich's bar, with the numbers beside it in as many lines as the terminal is narrow."""
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        columns = (
            TextColumn("step {task.completed:,.0f} of {task.total:,.0f}"),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.description}", markup=False, table_column=Column()),
        )
        bar = Progress(*columns, console=console, auto_refresh=False)
        bar.add_task("", total=1)
        return bar


class Contention:
    """Measures how much other programs take the cores, between one call of ``describe`` and the
    next."""

    def __init__(self) -> None:
        self.computed, self.waited = _schedule()

    def describe(self) -> str:
        """A few words, such as "shared, waits 60% of the time"; "" where the cores were free.

        Linux counts how long each thread was ready and had no core. Elsewhere the load of the last
        minute tells.
        """
        before = (self.computed, self.waited)
        (self.computed, self.waited) = _schedule()
        computed, waited = self.computed - before[0], self.waited - before[1]
        if computed > 0:
            share = max(0.0, waited) / (computed + max(0.0, waited))
            return f"shared, waits {share:.0%} of the time" if share > NOTICEABLE else ""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        total = os.cpu_count() or 1
        if load > total + 1:
            return f"shared, load {load:.0f} on {total} cores"
        return ""


def _schedule() -> tuple[int, int]:
    """Nanoseconds that this process's threads computed, and that they waited for a core; zeros but
    on Linux."""
    computed = waited = 0
    for task in TASKS.glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            words = task.read_text().split()
            computed, waited = computed + int(words[0]), waited + int(words[1])
    return computed, waited

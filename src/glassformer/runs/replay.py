"""Steps of a run again, from the nearest checkpoint before them, with the bits that they had.

A run is a function of its settings, its data and its seed: every draw is seeded by the step. The
loss of each step that is computed again must be the one in log.jsonl, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..core.errors import need, note
from ..core.training.loop import TrainStep
from ..fast import device as devices
from ..scale.mesh import Mesh
from ..scale.parallel import Parallel
from . import run_checkpoints
from .history import read_log
from .launch import Setup, set_up
from .run_file import read_run, saved_run
from .signals import lock

REPLAYED = "replayed"  # the folder in a run's own for checkpoints that were made again


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by their steps, in order, and those that were made again."""
    paths = run_checkpoints.steps(folder / REPLAYED) + run_checkpoints.steps(folder)
    return dict(sorted((run_checkpoints.number(path), path) for path in paths))


class Replay:
    """A run in a folder, whose steps are computed again and change nothing there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        saved, paths = saved_run(self.folder), run_checkpoints.steps(self.folder)
        need(
            saved is not None and bool(paths),
            f"{self.folder} holds no run with a checkpoint; give the folder that a training writes "
            "to.",
        )
        self.settings, self.newest = read_run(saved), paths[-1]
        self.last = run_checkpoints.number(self.newest)
        self.before = run_checkpoints.read_json(self.folder / "run.json")
        self.log = {line["step"]: line for line in read_log(self.folder / "log.jsonl")}

    def check(self, step: int) -> None:
        """UserError for a step that the run did not make."""
        need(
            0 < step <= self.last,
            f"There is no step {step} in {self.folder}; give a step from 1 to {self.last}.",
        )

    def start(self, step: int) -> Setup:
        """The run at its last checkpoint up to this step, or before its first step.

        Raises UserError where the data is no longer what it was.
        """
        earlier = [path for number, path in checkpoints(self.folder).items() if number <= step]
        path = earlier[-1] if earlier else None
        mesh = Mesh(Parallel().of(1), device=devices.find(self.settings.train.device))
        ready = set_up(self.settings, self.folder, self.before, self.newest, mesh, path is None)
        batches = ready.state.batches
        saved = run_checkpoints.read_json(self.newest / "state.json")
        fresh = batches.state()
        batches.restore(saved["batches"])  # it refuses other data
        batches.restore(fresh)
        if path is not None:
            run_checkpoints.restore(path, ready.state)
        return ready

    def steps(self, ready: Setup, until: int, checked: bool = True) -> Iterator[TrainStep]:
        """The steps up to this one, each ``checked`` against the log, where it is the run's own."""
        state = ready.state
        if state.step >= until:
            return
        if checked:
            note(f"Replaying steps {state.step + 1:,} to {until:,}.")
        for step in ready.steps():
            line = self.log.get(step.index, {})
            need(
                not checked or line.get("loss") in (None, step.loss),
                f"Step {step.index} has the loss {step.loss} now and another one in log.jsonl; a "
                "replay needs the run's data, first weights, device and versions.",
            )
            valid = line.get("valid_loss", state.best)
            if valid < state.best and (step.last or not state.skipped_in_a_row):  # as Save has it
                state.best, state.best_step = valid, step.index
            if step.index % 100 == 0:
                note(f"  replayed step {step.index:,} of {until:,}")
            yield step
            if step.index == until:
                return


def replay(folder: str | Path, step: int) -> Path:
    """Makes the checkpoint of one step of a run again, with the bytes that it had.

    It starts from the nearest checkpoint before the step. The run's own files stay as they are.

    Args:
        folder: The folder of the run.
        step: The step, counted from 1.

    Returns:
        The checkpoint's folder: ``replayed/step-000137`` in the run's, or the one that is there.

    Raises:
        UserError: The folder holds no run, the run made no such step, or its data has changed.

    Example:
        >>> path = glassformer.replay("out/mine", 1)
        >>> model, tokenizer = glassformer.load(path)
    """
    run = Replay(folder)
    run.check(step)
    target = run.folder / REPLAYED
    if step not in checkpoints(run.folder):
        with lock(target, "replaying"):
            run_checkpoints.tidy(target)
            ready = run.start(step)
            list(run.steps(ready, step))
            tokenizers = ready.plan.tokenizer, ready.plan.source_tokenizer
            run_checkpoints.write(target, ready.state, *tokenizers)
    return checkpoints(run.folder)[step]

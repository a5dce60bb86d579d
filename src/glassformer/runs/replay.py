"""Steps of a run again, from the nearest checkpoint before them, with the bits that they had.

A run is a function of its settings, its data and its seed: every draw is seeded by the step. The
loss of each step that is computed again must be the one in log.jsonl, to the bit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import need, note
from ..core.training.loop import TrainStep
from ..scale.mesh import Mesh, started
from ..scale.parallel import Parallel
from . import run_checkpoints
from .history import read_log
from .launch import Setup, set_up
from .run_file import read_run, saved_run
from .signals import lock

REPLAYED = "replayed"  # the folder in a run's own for checkpoints that were made again
PROGRESS = 10.0  # seconds after which a replay says how far it is


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by their steps, in order, and those that were made again."""
    paths = run_checkpoints.steps(folder / REPLAYED) + run_checkpoints.steps(folder)
    return dict(sorted((run_checkpoints.number(path), path) for path in paths))


class Replay:
    """A run in a folder, whose steps are computed again and change nothing there."""

    def __init__(self, folder: Path, mesh: Mesh) -> None:
        self.folder, self.mesh = folder, mesh
        newest = run_checkpoints.newest(folder)
        need(newest is not None, f"{folder} holds no checkpoint; train there first.")
        assert newest is not None
        self.last, self.newest = run_checkpoints.number(newest), newest
        self.before = run_checkpoints.read_json(folder / "run.json")
        self.log = {line["step"]: line for line in read_log(folder / "log.jsonl")}

    def check(self, step: int) -> None:
        """UserError for a step that the run did not make."""
        need(
            0 < step <= self.last,
            f"{self.folder} has checkpoints up to step {self.last} and none of step {step}; give a "
            f"step from 1 to {self.last}.",
        )

    def start(self, step: int) -> Setup:
        """The run at its last checkpoint up to this step, or before its first step.

        Raises UserError where the data, the tokenizer or the weights that it began from are no
        longer what they were.
        """
        earlier = [path for number, path in checkpoints(self.folder).items() if number <= step]
        path = earlier[-1] if earlier else None
        settings = read_run(saved_run(self.folder))
        ready = set_up(settings, self.folder, self.before, self.newest, self.mesh, path is None)
        state, tokenizer = ready.state, ready.plan.tokenizer
        need(
            self.before.get("tokenizer") == (tokenizer and tokenizer.fingerprint),
            f"The tokenizer is no longer that of the run in {self.folder}; restore the data and "
            "the tokenizer that it was trained with.",
        )
        saved, fresh = run_checkpoints.read_json(self.newest / "state.json"), state.batches.state()
        state.batches.restore(saved["batches"])  # it refuses other data
        state.batches.restore(fresh)
        if path is not None:
            run_checkpoints.restore(path, state)
        else:
            need(
                saved.get("frozen_digest") == state.frozen_digest,
                f"{state.base_model} has other weights than when the run in {self.folder} began; "
                "restore them.",
            )
        return ready

    def steps(self, ready: Setup, until: int, checked: bool = True) -> Iterator[TrainStep]:
        """The steps up to this one, each ``checked`` against the log, where it is the run's own."""
        state, noted = ready.state, time.monotonic()
        if state.step >= until:
            return
        if checked:
            note(f"Replaying steps {state.step + 1:,} to {until:,}.")
        for step in ready.steps():
            line = self.log.get(step.index, {})
            need(
                not checked or line.get("loss", step.loss) == step.loss or bool(step.skipped),
                f"Step {step.index} has the loss {step.loss} now and {line.get('loss')} in "
                f"{self.folder / 'log.jsonl'}; a replay is exact with the run's data, first weights, "
                "device and versions alone.",
            )
            valid = line.get("valid_loss", state.best)
            at_end = step.index in (state.earlier_ends or ()) or step.last
            if valid < state.best and (at_end or not state.skipped_in_a_row):
                state.best, state.best_step = valid, step.index
            if time.monotonic() - noted > PROGRESS:
                noted = time.monotonic()
                note(f"  replayed step {step.index:,} of {until:,}")
            yield step
            if step.index == until:
                return


@contextlib.contextmanager
def opened(folder: str | Path) -> Iterator[Replay]:
    """A run whose steps can be computed again; UserError where a folder holds none."""
    path = Path(folder).expanduser()
    saved = saved_run(path)
    need(
        saved is not None,
        f"{path} holds no run (run.json); give the folder that a training writes to.",
    )
    with started(Parallel(), read_run(saved).train.device) as mesh:
        need(mesh.alone, "A replay runs in one process; start it without torchrun.")
        yield Replay(path, mesh)


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
    with opened(folder) as run:
        run.check(step)
        target = run.folder / REPLAYED
        if step not in checkpoints(run.folder):
            with lock(target, "replaying"):
                run_checkpoints.tidy(target)
                ready = run.start(step)
                for _ in run.steps(ready, step):
                    pass
                plan = ready.plan
                run_checkpoints.write(target, ready.state, plan.tokenizer, plan.source_tokenizer)
        return checkpoints(run.folder)[step]

"""A run of four steps that a pool of processes trains as one process does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from folders import snapshot
from glassformer import runs
from glassformer.commands.train import write_sample
from glassformer.core.errors import UserError
from glassformer.runs import launch, run_file

LINES = [
    f"the {word} {verb} the {letter}"
    for word in ("cat", "owl")
    for verb in ("saw", "met")
    for letter in "abcdefg"
]
SMALL = {
    "recipe": "glass/200k",
    "decoder.depth": 2,
    "context": 26,
    "data.tokenizer": "char",
    "data.valid": 0.2,
    "steps": 4,
    "batch": 8,
    "accumulate": 4,
    "evaluate_every": 2,
    "evaluate_batches": 3,
    "save_every": 1,
    "keep": 9,
    "sample_every": 3,
    "tensorboard": False,
    "dtype": "float32",
}


def settings(folder, more):
    """The run's settings: ``more`` beside SMALL, without those that are None in it."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("\n".join(LINES * 3))
    every = {**SMALL, "data.train": str(text), **more}
    return run_file.read_run(None, {name: x for name, x in every.items() if x is not None})


def trained(mesh, folder, out, more, resume=False, speaks=False):
    """End of a run on all processes of the mesh, or its error. Where it ``speaks``, its samples are
    the model's own."""
    sample = write_sample if speaks else lambda *_: "text"
    try:
        ended = runs.run(settings(Path(folder), more), Path(out), resume, sample=sample)
    except UserError as error:
        return str(error)
    return [ended.step, ended.loss, ended.valid_loss]


def run_and_resume(settings, full_run, cut, monkeypatch, at=3):
    """The last checkpoints of a run, and of one that is cut at a step and goes on, as files."""
    runs.run(settings, full_run)
    first = launch.Log.__call__
    with monkeypatch.context() as patch:
        patch.setattr(
            launch.Log,
            "__call__",
            lambda self, step: first(self, step) or (step.index == at and 1 / 0),
        )
        with pytest.raises(ZeroDivisionError):
            runs.run(settings, cut)
    runs.run(settings, cut, resume=True)
    return [snapshot(run / "step-000004") for run in (full_run, cut)]


def copy_half_run(out, run):
    """A folder that goes on from the second step of a run."""
    out.mkdir()
    shutil.copytree(run / "step-000002", out / "step-000002")
    for name in ("run.json", "log.jsonl"):
        shutil.copy(run / name, out)
    return out


def log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").open()]

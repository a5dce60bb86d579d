"""A step that is computed again has the bytes that it had, and the run's own files stay as they are."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest

import glassformer
from folders import edit_json, read_json, snapshot
from glassformer.cli import main
from glassformer.runs import run, run_file
from mistakes import mistake
from runs import test_launch

corpus = test_launch.corpus
SETTINGS = {
    **test_launch.SETTINGS,
    "steps": "9",
    "evaluate_every": "2",
    "save_every": "1",
    "keep": "20",
}


def trained(corpus, out, resume=False, **changes):
    settings = {**SETTINGS, "data.train": str(corpus), **changes}
    settings = {name: value for name, value in settings.items() if value is not None}
    run(run_file.read_run(None, settings), out, resume)
    return out


@pytest.fixture(scope="module")
def saved_run(corpus, tmp_path_factory):
    """A run that saved each of its steps."""
    return trained(corpus, tmp_path_factory.mktemp("whole") / "run")


def thinned(saved_run, folder, *steps):
    """A copy of a run that has the checkpoints of these steps alone."""
    shutil.copytree(saved_run, folder)
    for path in folder.glob("step-*"):
        if int(path.name[5:]) not in steps:
            shutil.rmtree(path)
    return folder


CASES = {
    "muon": {},
    "adamw": {"optimizer": "AdamW", "schedule": "Cosine", "accumulate": "1"},
    "more steps": {"schedule": "Cosine", "steps": "5"},
    "lora": {"train.tune": "LoRA", "train.tune.dropout": "0.2", "accumulate": "3"},
}


@pytest.mark.parametrize("case", CASES)
def test_each_step_has_its_bytes_again(case, corpus, saved_run, tmp_path):
    every = saved_run
    if case == "lora":
        shape = dict.fromkeys(name for name in SETTINGS if "dec" in name or name == "dim")
        options = {"from": str(saved_run), "data.tokenizer": None, **shape}
        every = trained(corpus, tmp_path / "every", **options, **CASES[case])
    elif case != "muon":
        every = trained(corpus, tmp_path / "every", **CASES[case])
    if case == "more steps":  # than the run had at first
        trained(corpus, every, resume=True, **{**CASES[case], "steps": "9"})
    few = thinned(every, tmp_path / "few", 4, 9)
    before = snapshot(few)
    for step in (1, 3, 6, 8):  # from the start, from step 4, and from a step that was replayed
        path = glassformer.replay(few, step)
        assert path == few / "replayed" / f"step-{step:06d}"
        assert snapshot(path) == snapshot(every / path.name)
    after = snapshot(few)
    assert {name: after[name] for name in after if "replayed" not in name} == before
    assert glassformer.replay(few, 4) == few / "step-000004"


KILLED = """
import os, signal, sys
import glassformer
from glassformer.scale import shares
shares.sums = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # all is written but for the sums
glassformer.replay(sys.argv[1], 3)
"""


def test_killed_on_the_way_it_is_repeated(saved_run, tmp_path, capsys):
    few = thinned(saved_run, tmp_path / "few", 9)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(few)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    (half,) = (path for path in (few / "replayed").iterdir() if path.name != ".lock")
    assert half.name.startswith(".")
    assert main(["train", "--out", str(few), "--at", "3"]) == 0
    path = few / "replayed/step-000003"
    assert capsys.readouterr().out == f"{path}\n"
    assert snapshot(path) == snapshot(saved_run / path.name)
    assert not half.exists()


def test_the_steps_that_are_named_stay(corpus, tmp_path):
    changes = {"save_every": "0", "keep": "1", "save_at": "1,2,4", "evaluate_every": "3"}
    out = trained(corpus, tmp_path / "run", **changes, steps="7", early_stop="0")
    best = int((out / "best").read_text().strip()[5:])
    steps = [int(path.name[5:]) for path in sorted(out.glob("step-*"))]
    assert steps == sorted({1, 2, 4, 7, best})
    lines = [json.loads(line) for line in (out / "log.jsonl").open()]
    assert [x["step"] for x in lines if "valid_loss" in x] == [1, 2, 3, 4, 6, 7]


def test_what_is_no_longer_the_run_is_refused(saved_run, corpus, tmp_path, capsys):
    with mistake("no step 10 in .*; give a step from 1 to 9"):
        glassformer.replay(saved_run, 10)
    with mistake("no step 0 in"):
        glassformer.replay(saved_run, 0)
    with mistake("holds no run"):
        glassformer.replay(tmp_path, 1)
    with mistake("holds no run"):
        glassformer.replay(thinned(saved_run, tmp_path / "none"), 1)
    assert main(["train", "--out", str(saved_run), "--at", "3", "--steps", "5"]) == 2
    assert "leave the other settings out" in capsys.readouterr().err
    few = thinned(saved_run, tmp_path / "few", 4, 9)
    text = tmp_path / "squares.txt"
    text.write_text(corpus.read_text().replace("7", "8", 1))
    data = read_json(few / "run.json")["data"]
    edit_json(few / "run.json", data={**data, "train": str(text)})
    for step in (2, 6):
        with mistake("another content of the training data"):
            glassformer.replay(few, step)


def test_each_step_is_held_to_the_log(saved_run, tmp_path):
    few = thinned(saved_run, tmp_path / "few", 9)
    lines = (few / "log.jsonl").read_text().splitlines()
    line = json.loads(lines[1])
    lines[1] = json.dumps({**line, "loss": line["loss"] * (1 + 2e-16)})
    (few / "log.jsonl").write_text("\n".join(lines) + "\n")
    with mistake("Step 2 has the loss .* now and another one in log.jsonl"):
        glassformer.replay(few, 3)
    assert not list((few / "replayed").glob("step*"))

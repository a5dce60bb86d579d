"""Runs that train a part of a model: resumed bit for bit, merged, averaged, refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tiny
from folders import read_json, snapshot, squares
from glassformer import config, runs
from glassformer.core import files
from glassformer.core.config import objective as objectives
from glassformer.core.config import run, serial
from glassformer.formats import resolve, store, tuning
from glassformer.formats.checkpoint import Checkpoint
from glassformer.runs import callbacks, launch, run_checkpoints, run_config
from mistakes import mistake

OPTIONS = {"batch": 4, "dtype": "float32", "keep": 3, "tensorboard": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A trained model, as a base, with its corpus and a table of labels."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(squares(300))
    rows = "".join(f"{i} times {i}\t{'odd' if i % 2 else 'even'}\n" for i in range(80))
    (folder / "labels.tsv").write_text("text\tlabel\n" + rows)
    sizes = {"dim": 16, "decoder.depth": 2, "decoder.pattern.attention.heads": 2, "context": 32}
    data = run_config.Data(str(folder / "text.txt"), tokenizer="char")
    options = run.Train(steps=6, save_every=2, **OPTIONS)
    runs.run(run_config.Run({"recipe": "glass/1m", **sizes}, data, options), folder / "base")
    return folder


def changed(home, tune, objective=None, base=None):
    data = run_config.Data(str(home / "text.txt"))
    if isinstance(objective, objectives.Classify):
        data = run_config.Examples(str(home / "labels.tsv"))
    options = run.Train(
        objective or objectives.Causal(),
        tune,
        steps=8,
        evaluate_every=4,
        save_every=4,
        optimizer=run.AdamW(1e-2),
        **OPTIONS,
    )
    return run_config.Run(
        {"from": str(base or home / "base"), "decoder.dropout": 0.1}, data, options
    )


def weights_in(folder):
    return dict(store.load(folder)[0].named_parameters())


TUNES = {
    "lora": (objectives.LoRA(rank=2, dropout=0.1), None),
    "lora, labels": (objectives.LoRA(rank=2), objectives.Classify()),
    "frozen": (objectives.Frozen(train=("decoder.blocks.1.*",)), None),
    "frozen, labels": (objectives.Frozen(), objectives.Classify()),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "lora" else pytest.param(name, marks=pytest.mark.slow) for name in TUNES],
)
def test_a_tuned_run_is_resumed_bit_for_bit_and_small(name, home, tmp_path, monkeypatch, capfd):
    settings = changed(home, *TUNES[name])
    full_run = tmp_path / "whole"
    cut = tmp_path / "cut"
    runs.run(settings, full_run)
    stderr = capfd.readouterr().err
    assert "weights; the others stay as they are" in stderr
    assert ("has no weights for pool.proj: drawn anew" in stderr) == ("labels" in name)
    first = launch.Log.__call__
    with monkeypatch.context() as patch:
        patch.setattr(
            launch.Log,
            "__call__",
            lambda self, step: first(self, step) or (step.index == 6 and 1 / 0),
        )
        with pytest.raises(ZeroDivisionError):
            runs.run(settings, cut)
    assert runs.run(settings, cut, resume=True).step == 8
    saved, again = (snapshot(folder / "step-000008") for folder in (full_run, cut))
    assert {**saved, "state.json": b""} == {**again, "state.json": b""}
    assert ("adapter_model.safetensors" in saved) == ("lora" in name)
    size = sum(len(data) for path, data in saved.items() if path.endswith("model.safetensors"))
    assert size < 0.5 * (resolve.resolve(home / "base") / "model.safetensors").stat().st_size
    model, tokenizer = store.load(full_run)
    assert tokenizer is not None
    assert not tuning.adapted(model)
    before = weights_in(home / "base")
    after = weights_in(full_run)
    moved = {path for path in before if not torch.equal(before[path], after[path])}
    assert name == "frozen, labels" or moved
    assert not any(
        path.endswith(("ffn.up.weight", "embed.token.weight")) and "blocks.1" not in path
        for path in moved
    )
    if "labels" in name:
        assert Checkpoint.open(full_run).labels == ("even", "odd")


def test_a_merged_model_stands_alone(home, tmp_path, terminal):
    runs.run(changed(home, TUNES["lora"][0]), tmp_path / "run")
    terminal(f"convert {tmp_path}/run {tmp_path}/plain --layout glassformer")
    assert Checkpoint.open(tmp_path / "plain").base is None
    assert tiny.equal_tensors(weights_in(tmp_path / "run"), weights_in(tmp_path / "plain"))
    again = changed(home, objectives.Full(), base=tmp_path / "run")
    assert runs.run(again, tmp_path / "on").step == 8  # what was changed is a base as well


def test_tuning_needs_a_trained_model_and_the_same_one(home, tmp_path):
    settings = changed(home, TUNES["frozen"][0], base=tmp_path / "base")
    untrained = replace(settings, model={"recipe": "glass/1m"})
    with mistake(r"changes a model that was trained; name it, \[model\] from"):
        runs.run(untrained, tmp_path / "none")
    model, tokenizer = store.load(home / "base")
    store.save(model, tmp_path / "base", tokenizer)
    runs.run(settings, tmp_path / "run")
    weight = model.embed.token.weight.detach()
    for changed_weight in (
        weight.flip(0),
        weight + 1,
    ):  # the same numbers in another order, other numbers
        weight.copy_(changed_weight)
        store.save(model, tmp_path / "base", tokenizer)
        with mistake(r"has other weights than when"):
            runs.run(settings, tmp_path / "run", resume=True)


def test_a_run_of_an_earlier_version_goes_on(home, tmp_path):
    settings = changed(home, TUNES["frozen"][0])
    runs.run(settings, tmp_path / "run")
    page = resolve.resolve(tmp_path / "run") / "state.json"
    numbers = read_json(page)
    assert numbers["frozen_digest"].startswith("sha256:")
    page.write_text(json.dumps(numbers | {"frozen_digest": 64 * "0"}) + "\n")
    sums = page.parent / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if page.name not in line]
    sums.write_text("\n".join([*lines, f"{files.sha256(page)}  {page.name}"]) + "\n")
    assert runs.run(settings, tmp_path / "run", resume=True).step == settings.train.steps


# --------------------------------------------------------------------------------------- averages


def test_an_average_is_the_mean_of_the_last_checkpoints(home, tmp_path, terminal):
    """Other numbers of them: training/test_mutants.py."""
    terminal(f"average {home}/base --last 3 --out {tmp_path}/mean")
    pieces = [weights_in(path) for path in run_checkpoints.steps(home / "base")[-3:]]
    for name, weight in weights_in(tmp_path / "mean").items():
        assert_close(weight, torch.stack([piece[name] for piece in pieces]).mean(0))
    assert store.load(tmp_path / "mean")[1] is not None
    with mistake(r"--last is 0"):
        run_checkpoints.average(home / "base", 0)


def test_facts_are_logged(tmp_path, home):
    shape = replace(tiny.DECODERS["mixtral"], embed=config.Embed(60), context=32)
    data = run_config.Data(str(home / "text.txt"), tokenizer="char")
    options = run.Train(steps=2, accumulate=2, evaluate_every=2, **OPTIONS)
    runs.run(run_config.Run(serial.to_dict(shape), data, options), tmp_path)
    line = callbacks.read_log(tmp_path / "log.jsonl")[-1]
    assert np.shape(line["load"]) == (2, 4)
    assert len(line["entropy"]) == 2

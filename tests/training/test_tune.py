"""Runs that train a part of a model: resumed bit for bit, merged, averaged, refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tiny
from glassformer import cli, config, runs
from glassformer.core.config import objective as objectives
from glassformer.core.config import run
from glassformer.core.errors import UserError
from glassformer.formats import lora, resolve, store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.runs import hooks, launch, run_checkpoints, run_config


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A trained model, as a base, with its corpus and a table of labels."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(300)))
    rows = "".join(f"{i} times {i}\t{'odd' if i % 2 else 'even'}\n" for i in range(80))
    (folder / "labels.tsv").write_text("text\tlabel\n" + rows)
    small = {
        "recipe": "glass/1m",
        "dim": 16,
        "decoder.depth": 2,
        "decoder.pattern.attention.heads": 2,
        "context": 32,
    }
    options = run.Train(steps=6, batch=4, dtype="float32", save_every=2, keep=3, tensorboard=False)
    runs.run(
        run_config.Run(small, run_config.Data(str(folder / "text.txt"), tokenizer="char"), options),
        folder / "base",
    )
    return folder


def changed(home, tune, objective=None, **kwargs):
    objective = objective or objectives.Causal()
    data = run_config.Data(str(home / "text.txt"))
    if isinstance(objective, objectives.Classify):
        data = run_config.Examples(str(home / "labels.tsv"))
    options = run.Train(
        objective,
        tune,
        steps=8,
        batch=4,
        dtype="float32",
        evaluate_every=4,
        save_every=4,
        keep=3,
        tensorboard=False,
        optimizer=run.AdamW(1e-2),
        **kwargs,
    )
    return run_config.Run({"from": str(home / "base"), "decoder.dropout": 0.1}, data, options)


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
    runs.run(settings, tmp_path / "whole")
    stderr = capfd.readouterr().err
    assert "weights; the others stay as they are" in stderr
    assert ("has no weights for pool.proj: drawn anew" in stderr) == ("labels" in name)
    first = launch.Log.__call__
    monkeypatch.setattr(
        launch.Log,
        "__call__",
        lambda self, step: first(self, step) or (step.index == 6 and 1 / 0),
    )
    with pytest.raises(ZeroDivisionError):
        runs.run(settings, tmp_path / "cut")
    monkeypatch.undo()
    assert runs.run(settings, tmp_path / "cut", resume=True).step == 8
    files = [
        sorted(
            (p.name, p.read_bytes())
            for p in (tmp_path / f / "step-000008").iterdir()
            if p.name != "state.json"
        )
        for f in ("whole", "cut")
    ]
    assert files[0] == files[1]
    stored = {p.name: p.stat().st_size for p in (tmp_path / "whole" / "step-000008").iterdir()}
    base = resolve.resolve(home / "base")
    assert ("adapter_model.safetensors" in stored) == ("lora" in name)
    size = stored.get("adapter_model.safetensors", 0) + stored.get("model.safetensors", 0)
    assert size < 0.5 * (base / "model.safetensors").stat().st_size
    model, tokenizer = store.load(tmp_path / "whole")
    assert tokenizer is not None and not lora.adapted(model)
    before, after = (
        dict(store.load(home / "base")[0].named_parameters()),
        dict(model.named_parameters()),
    )
    assert name == "frozen, labels" or [n for n in before if not torch.equal(before[n], after[n])]
    saved = [
        n
        for n in before
        if n.endswith(("ffn.up.weight", "embed.token.weight")) and "blocks.1" not in n
    ]
    assert saved and all(torch.equal(before[n], after[n]) for n in saved)
    if "labels" in name:
        assert Checkpoint.open(tmp_path / "whole").labels == ("even", "odd")


def test_a_merged_model_stands_alone(home, tmp_path):
    runs.run(changed(home, TUNES["lora"][0]), tmp_path / "run")
    assert (
        cli.main(
            ["convert", str(tmp_path / "run"), str(tmp_path / "plain"), "--layout", "glassformer"]
        )
        == 0
    )
    loaded, right = store.load(tmp_path / "run")[0], store.load(tmp_path / "plain")[0]
    assert Checkpoint.open(tmp_path / "plain").base is None
    assert all(map(torch.equal, loaded.parameters(), right.parameters()))
    again = dataclasses.replace(
        changed(home, objectives.Full()), model={"from": str(tmp_path / "run")}
    )
    ended = runs.run(again, tmp_path / "on")  # what was changed is a base as well
    assert ended.step == 8


def test_tuning_needs_a_trained_model_and_the_same_one(home, tmp_path):
    settings = changed(home, TUNES["frozen"][0])
    with pytest.raises(
        UserError,
        match=r"Frozen changes a model that was trained; name it, "
        r"\[model\] from",
    ):
        runs.run(dataclasses.replace(settings, model={"recipe": "glass/1m"}), tmp_path / "none")
    model, tokenizer = store.load(home / "base")
    store.save(model, tmp_path / "base", tokenizer)
    settings = dataclasses.replace(settings, model={"from": str(tmp_path / "base")})
    runs.run(settings, tmp_path / "run")
    with torch.no_grad():
        model.embed.token.weight.add_(1.0)
    store.save(model, tmp_path / "base", tokenizer)
    with pytest.raises(UserError, match=r"has other weights than when"):
        runs.run(settings, tmp_path / "run", resume=True)


# --------------------------------------------------------------------------------------- averages


def test_an_average_is_the_mean_of_the_last_checkpoints(home, tmp_path):
    assert (
        cli.main(["average", str(home / "base"), "--last", "3", "--out", str(tmp_path / "mean")])
        == 0
    )
    model, tokenizer = store.load(tmp_path / "mean")
    assert tokenizer is not None
    pieces = [
        dict(store.load(path)[0].named_parameters())
        for path in run_checkpoints.steps(home / "base")[-3:]
    ]
    assert len(pieces) == 3
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, torch.stack([piece[name] for piece in pieces]).mean(0))


@pytest.mark.parametrize(
    ("last", "message"),
    [(9, r"keeps 3 checkpoints; give --last 3, or train with --keep 9"), (0, r"--last is 0")],
)
def test_averages_of_too_few(home, last, message):
    with pytest.raises(UserError, match=message):
        run_checkpoints.average(home / "base", last)


def test_facts_are_logged(tmp_path, home):
    shape = tiny.DECODERS["mixtral"]
    shape = dataclasses.replace(shape, embed=config.Embed(60), context=32)
    from glassformer.core.config import serial

    options = run.Train(
        steps=2, batch=4, accumulate=2, dtype="float32", evaluate_every=2, tensorboard=False
    )
    runs.run(
        run_config.Run(
            serial.to_dict(shape),
            run_config.Data(str(home / "text.txt"), tokenizer="char"),
            options,
        ),
        tmp_path,
    )
    line = hooks.read_log(tmp_path / "log.jsonl")[-1]
    assert len(line["load"]) == 2 and len(line["load"][0]) == 4 and len(line["entropy"]) == 2

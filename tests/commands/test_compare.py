"""``glassformer compare``: one budget for all, what is finished is not done again, what cannot be
compared is said."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from folders import read_json
from glassformer import config
from glassformer.commands import compare
from glassformer.core.config import run, serial
from glassformer.fast.training import execution
from glassformer.fast.training.allocator import keep_freed_memory, peak_memory, reset_peak_memory
from glassformer.runs import compare as training
from glassformer.runs import run_config, run_file
from glassformer.runs.callbacks import read_log
from glassformer.runs.launch import RunResult
from glassformer.runs.run_plan import plan_run
from glassformer.runs.signals import lock
from glassformer.tasks.objectives import Classify
from mistakes import SENTENCES
from terminal import Terminal

ENDS = 'dim = 16\ncontext = 32\nembed = { vocab = 64 }\ninit = { std = "none", embed_std = 0.3 }\n'
MODELS = {
    "one-vector": 'encoder = { type = "Recurrent", causal = false }\n'
    'decoder = { type = "Recurrent", cell = "LSTM", cross = "Summary" }\n',
    "attention": 'encoder = "Recurrent"\ndecoder = { type = "Recurrent", cross = { type = '
    '"Additive", width = 8 } }\n',
}
TRAIN = """
[train]
objective = "Seq2Seq"
steps = 4
batch = 4
optimizer = { type = "AdamW", lr = 1e-2 }
evaluate_every = 2
save_every = 2
sample_every = 0
tensorboard = false
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two run files and what they read: words, and the same words backwards."""
    folder = tmp_path_factory.mktemp("compare")
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(60)]
    (folder / "texts.tsv").write_text(
        "source\ttarget\n" + "".join(f"{text}\t{text[::-1]}\n" for text in texts)
    )
    data = f'\n[data]\ntype = "Examples"\ntrain = "{folder}/texts.tsv"\ntokenizer = "words"\n'
    result = {"data": f"{folder}/texts.tsv"}
    for name, body in MODELS.items():
        path = folder / f"{name}.toml"
        path.write_text(f'[model]\ntype = "EncoderDecoder"\n{ENDS}{body}{data}{TRAIN}')
        result[name] = str(path)
    return result


@pytest.fixture
def terminal(capfd):
    return Terminal(capfd)


def best_loss(lines):
    return min(line["valid_loss"] for line in lines if "valid_loss" in line)


def changed(files, path, old, new):
    """The run file of attention with another text at a place."""
    text = Path(files["attention"]).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_two_models_one_table_and_nothing_twice(files, tmp_path, terminal, monkeypatch):
    out = tmp_path / "out"
    called = []
    run_one = training.run
    monkeypatch.setattr(
        training,
        "run",
        lambda file, *args, **more: called.append(file) or run_one(file, *args, **more),
    )
    line = f"compare {files['one-vector']} {files['attention']} --tokens 768 --out {out}"
    table = terminal(f"{line} --test {files['data']} --beams 2 --lengths 3,6").splitlines()
    assert len(table) == 3
    for name in ("valid loss", "test bleu", "bleu 1-3", "bleu 7+", "parameters", "MiB"):
        assert name in table[0]
    assert [settings.train.steps for settings in called] == [6, 6]
    assert (out / "comparison.png").exists()

    before = (out / "comparison.json").read_bytes()
    called.clear()
    results = terminal.json(line)
    assert (out / "comparison.json").read_bytes() == before
    assert not called, "what is finished was trained again"
    assert [result["name"] for result in results] == ["one-vector", "attention"]
    for result in results:
        settings = read_json(out / result["name"] / "run.json")
        model = serial.from_dict(config.Model, settings["model"])
        assert isinstance(model.decoder, config.Recurrent)
        lines = read_log(out / result["name"] / "log.jsonl")
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert result["valid"]["loss"] == best_loss(lines)
        assert result["tokens"] == sum(line["tokens"] for line in lines)
        assert result["seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
        assert 50 * 2**20 < result["peak"] < 4 * 2**30
        assert result["test"]["texts"] == 60


def test_seeds_and_varied_settings(files, tmp_path, terminal):
    out = tmp_path / "out"
    file = files["one-vector"]
    line = f"compare {file} --vary decoder.depth=1,2 --seeds 2 --out {out}"
    results = terminal.json(line)
    assert [result["name"] for result in results] == ["one-vector.depth=1", "one-vector.depth=2"]
    assert results[0]["parameters"] < results[1]["parameters"]
    for result in results:
        losses = []
        for seed in (0, 1):
            folder = out / f"{result['name']}.seed-{seed}"
            run = read_json(folder / "run.json")
            assert run["train"]["seed"] == seed
            assert str(run["model"]["decoder"]["depth"]) == result["name"][-1]
            lines = read_log(folder / "log.jsonl")
            losses.append(best_loss(lines))
            curve = result["seeds"][seed]["curve"]
            # validated every 2 steps
            assert curve[0][3] == pytest.approx((lines[0]["loss"] + lines[1]["loss"]) / 2)
        assert losses[0] != losses[1]
        assert result["valid"]["loss"] == pytest.approx(np.mean(losses))
        assert result["spread"]["valid"]["loss"] == pytest.approx(np.std(losses, ddof=1))
        assert result["precision"].startswith(("float32", "bfloat16"))
    table = terminal(line).splitlines()
    assert "format" in table[0]
    assert " ±0.0" in table[1]


def test_each_seed_goes_on_from_its_own_checkpoint(files, tmp_path, terminal):
    """``{seed}`` in ``from``: a second training at a rate of nothing has the losses that the first
    one ended with."""
    line = "compare {} --seeds 2 --out {}"
    (first,) = terminal.json(line.format(files["attention"], tmp_path / "first"))
    text = Path(files["attention"]).read_text().replace('tokenizer = "words"\n', "")
    _, data = text.replace("lr = 1e-2", "lr = 1e-20").split("\n[data]")
    again = tmp_path / "again.toml"
    again.write_text(f'[model]\nfrom = "{tmp_path}/first/attention.seed-{{seed}}"\n[data]{data}')
    (second,) = terminal.json(line.format(again, tmp_path / "again"))
    for before, after in zip(first["seeds"], second["seeds"], strict=True):
        assert after["valid"]["loss"] == pytest.approx(before["valid"]["loss"], rel=1e-5)
        assert 0 < after["processor"] < 60
    losses = [seed["valid"]["loss"] for seed in first["seeds"]]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def run_of_encoder(folder, train, kind, objective, model=""):
    """A run file of a small encoder that reads train.KIND, as the words of a line; what it makes
    goes to out/."""
    path = folder / "encoder.toml"
    path.write_text(
        f'[model]\nrecipe = "glass/encoder-1m"\nencoder.depth = 1\ndim = 32\n{model}'
        f'[data]\ntype = "Examples"\ntrain = "{folder}/train.{kind}"\ntokenizer = "words"\n'
        + train.replace("Seq2Seq", objective)
    )
    return f"compare {path} --test {folder}/test.{kind} --out {folder}/out"


def test_a_bag_of_words_is_beside_a_model(tmp_path, terminal):
    draw = random.Random(0)
    words = (["good", "fine", "well"], ["bad", "poor", "ill"])
    rows = [f"{' '.join(draw.choices(words[n % 2], k=4))}\t{n % 2}\n" for n in range(60)]
    for name, piece in (("train", rows[:40]), ("test", rows[40:])):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(piece))
    valid = f'valid = "{tmp_path}/test.tsv"\n{TRAIN}'
    pool = 'pool = { mode = "mean", labels = 2 }\n'
    line = run_of_encoder(tmp_path, valid, "tsv", "Classify", pool)
    _, bag = terminal.json(f"{line} --bag")
    assert bag["name"] == compare.BAG
    assert bag["parameters"] == 6 + 1
    assert bag["valid"]["accuracy"] == 1
    assert bag["test"]["accuracy"] == 100
    assert 0 < bag["valid"]["loss"] < 0.4
    assert bag["tokens"] == 160
    assert 2**24 < bag["peak"] < 2**33
    assert compare.BAG in terminal(f"{line} --bag")


def test_taggers_are_held_to_a_set_of_sentences(tmp_path, terminal):
    for name in ("train", "test"):
        rows = "Ann\tB-PER\nsaw\tO\n\nRome\tB-PLACE\nslept\tO\n\n" * 10
        (tmp_path / f"{name}.conll").write_text(rows)
    train = TRAIN.replace("steps = 4", "steps = 60")
    (data,) = terminal.json(run_of_encoder(tmp_path, train, "conll", "Tag"))
    assert data["test"]["sentences"] == 20
    assert data["test"]["f1"] == 100
    assert data["valid"]["f1"] == 1


def test_the_memory_of_an_arm_is_its_own():
    """Not that of a greater one before it; what was freed and is kept for the next step goes back
    in between."""
    keep_freed_memory()
    reset_peak_memory()
    before = peak_memory()
    torch.ones(1 << 27)  # 512 MiB, and gone
    assert 1 << 28 < peak_memory() - before < 1 << 30
    reset_peak_memory()
    assert abs(peak_memory() - before) < 1 << 27
    assert 2**23 < before < 2**33


def test_a_signal_to_the_comparison_alone_ends_the_training_too(files, tmp_path):
    """A service manager sends it so; the training saves, the comparison names the way on, no
    process remains."""
    long = changed(files, tmp_path / "long.toml", "steps = 4", "steps = 100000")
    out = tmp_path / "out"
    log = tmp_path / "out" / "long" / "log.jsonl"
    words = [sys.executable, "-m", "glassformer", "compare", str(long), "--out", str(out)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while not log.exists() or log.read_text().count("\n") < 3:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.terminate()
        _, message = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Finishing this step" in message
    assert "Continue with:\n  the same compare command" in message
    assert f"it goes on with what is in {out}" in message
    done = int((out / "long" / "last").read_text().removeprefix("step-"))
    assert read_log(log)[-1]["step"] == done  # saved where it was, not thrown away
    with lock(out / "long", "looking"):  # nobody trains there any more
        pass


def test_a_run_that_was_cut_off_goes_on(files, tmp_path, monkeypatch, terminal):
    """A stopped training ends the comparison with its code; the same call then resumes it."""
    called = []
    signals = iter([signal.SIGINT, None])
    peaks = iter([7, 6])

    def run_one(settings, folder, resume, **options):
        called.append(resume)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").touch()
        return RunResult(folder, 1, 1.0, 1.0, next(signals))

    result = {"valid": {"loss": 1.0}, "parameters": 1, "tokens": 1, "seconds": 1.0, "curve": []}
    monkeypatch.setattr(training, "run", run_one)
    monkeypatch.setattr(training, "peak_memory", lambda: next(peaks))
    monkeypatch.setattr(training, "figures", lambda folder: result)
    line = f"compare {files['attention']} --out {tmp_path}/out"
    terminal(line, code=130)
    assert terminal.json(line)[0]["peak"] == 7
    assert called == [False, True]


def test_a_run_that_fails_ends_the_comparison_with_its_sentence(files, tmp_path, terminal):
    """Runs that finished before it stay."""
    bad = changed(files, tmp_path / "bad.toml", "vocab = 64", "vocab = 5")
    notes = terminal.refused(f"compare {files['one-vector']} {bad} --out {tmp_path}/out")
    assert "embed" in notes.strip().splitlines()[-1]
    data = read_json(tmp_path / "out" / "comparison.json")["runs"]
    assert data["one-vector"]["finished"]
    assert not data["bad"].get("finished")


def test_how_often_a_text_is_read_is_no_difference():
    """Another objective is; dropout's agreement and pushes belong to how a model is trained, as its
    optimizer does."""
    plain, pushed, number = (
        training.comparable_settings(
            run_config.Run(
                data=run_config.Examples("a.tsv"), train=run.Train(objective=Classify(**options))
            )
        )
        for options in ({}, {"rdrop": 1.0, "adversarial": 0.1}, {"regression": True})
    )
    assert plain == pushed != number


def test_minutes_are_measured(files, tmp_path, monkeypatch):
    stopped = None

    def run_one(settings, folder, **options):
        folder.mkdir(parents=True)
        lines = [
            f'{{"step": {step}, "seconds": {9.0 if step < 4 else 0.5}}}\n'
            for step in range(1, settings.train.steps + 1)
        ]
        (folder / "log.jsonl").write_text("".join(lines))
        return RunResult(folder, len(lines), 1.0, None, stopped)

    monkeypatch.setattr(training, "run", run_one)
    (arm,) = training.read_arms([files["attention"]])
    folder = tmp_path / "attention"
    assert training.steps_for(arm.settings, folder, {"minutes": 2.0}) == 240
    stopped = signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        training.steps_for(arm.settings, folder, {"minutes": 2.0})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('tokenizer = "words"', 'tokenizer = "words"\nvocab = 9', "data.vocab"),
        ("texts.tsv", "texts2.tsv", "data.train"),
    ],
)
def test_runs_that_differ_in_more_than_the_model(files, tmp_path, terminal, old, new, message):
    other_file = changed(files, tmp_path / "other.toml", old, new)
    assert message in terminal.refused(f"compare {files['one-vector']} {other_file}")


@pytest.mark.parametrize(
    "line, message",
    SENTENCES["compare"].items(),
)
def test_mistakes_are_one_sentence(files, tmp_path, terminal, monkeypatch, line, message):
    seldom = changed(files, tmp_path / "s.toml", "evaluate_every = 2", "evaluate_every = 0")
    names = {"one": files["one-vector"], "two": files["attention"], "data": files["data"]}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    notes = terminal.refused(f"compare {line.format(seldom=seldom, **names)} --out out")
    assert message in notes
    assert len(notes.splitlines()) == 1
    assert "--test" not in notes or "--steps" not in line
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"budget": {"tokens": 5}, "runs": {}}', "--tokens 5"),
        ("{", "is not valid JSON"),
    ],
)
def test_a_comparison_that_is_there_is_not_taken_for_another(
    files, tmp_path, terminal, content, message
):
    (tmp_path / "comparison.json").write_text(content)
    assert message in terminal.refused(f"compare {files['one-vector']} --tokens 6 --out {tmp_path}")


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "runs" / "compare").glob("*.toml")),
    ids=lambda p: p.stem,
)
def test_the_run_files_that_are_shipped_describe_models(path, shared_data):
    model = plan_run(training.read_arms([str(path)])[0].settings).shape
    assert model.embed.vocab > 0
    output = ("rnn", "lstm")
    assert bool(model.recurrent) == any(name in path.stem for name in output)


def test_all_arms_have_one_plan(monkeypatch):
    """A narrow and a wide arm, each of which would have its own plan on a Zen 5, both train in
    fp32."""
    monkeypatch.setattr(execution, "machine", lambda device: "AMD CPU with AVX512-BF16")
    plans = [run_file.read_run(None, {"dim": dim}) for dim in ("64", "256")]
    arms = [training.Arm(name, plan) for name, plan in zip("ab", plans, strict=True)]
    for group, dtype in ((arms[1:], "bfloat16"), (arms, "float32"), (arms[:1], "float32")):
        assert training.shared_precision(group)["dtype"] == dtype
    for plan in (plans[0], run_file.read_run(None, {"dtype": "bfloat16"})):
        dtype = "float32" if plan.train.dtype == "auto" else plan.train.dtype
        shared = training.with_precision(plan, "float32").train
        assert shared == replace(plan.train, dtype=dtype, compile="no")

"""``glassformer compare``: one budget for all, what is finished is not done again, what cannot be
compared is said."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer import config
from glassformer.cli import main
from glassformer.commands import compare
from glassformer.core.config import run, serial
from glassformer.core.files import lock
from glassformer.fast.training.allocator import keep_freed_memory, peak_memory, reset_peak_memory
from glassformer.runs import compare as training
from glassformer.runs import run_config, run_file
from glassformer.runs.hooks import read_log
from glassformer.runs.launch import RunResult
from glassformer.runs.plan import plan_run
from glassformer.tasks.objectives import Classify

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
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two run files and what they read: words, and the same words backwards."""
    folder, draw = tmp_path_factory.mktemp("compare"), random.Random(0)
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


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence that a mistake is answered with."""
    assert main(["compare", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_two_models_one_table_and_nothing_twice(
    files,
    tmp_path,
    capfd,
    monkeypatch,
):
    out, called = tmp_path / "out", []
    run_one = training.run
    monkeypatch.setattr(
        training,
        "run",
        lambda settings, *args, **options: (
            called.append(settings) or run_one(settings, *args, **options)
        ),
    )
    words = [
        "compare",
        files["one-vector"],
        files["attention"],
        "--tokens",
        "768",
        "--out",
        str(out),
    ]
    assert main([*words, "--test", files["data"], "--beams", "2", "--lengths", "3,6"]) == 0
    table = capfd.readouterr().out.splitlines()
    assert len(table) == 3
    assert all(
        name in table[0]
        for name in ("valid loss", "test bleu", "bleu 1-3", "bleu 7+", "parameters", "MiB")
    )
    assert [settings.train.steps for settings in called] == [6, 6]
    assert (out / "comparison.png").exists()

    before = (out / "comparison.json").read_bytes()
    called.clear()
    assert main([*words, "--json"]) == 0
    results: list[dict[str, Any]] = json.loads(capfd.readouterr().out)
    assert (out / "comparison.json").read_bytes() == before
    assert not called, "what is finished was trained again"
    assert [result["name"] for result in results] == ["one-vector", "attention"]
    for result in results:
        model = serial.from_dict(
            config.Model, json.loads((out / result["name"] / "run.json").read_text())["model"]
        )
        assert isinstance(model.decoder, config.Recurrent)
        lines = [
            json.loads(line)
            for line in (out / result["name"] / "log.jsonl").read_text().splitlines()
        ]
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        assert result["valid"]["loss"] == min(
            line["valid_loss"] for line in lines if "valid_loss" in line
        )
        assert result["tokens"] == sum(line["tokens"] for line in lines)
        assert result["seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
        assert 50 * 2**20 < result["peak"] < 4 * 2**30
        assert result["test"]["texts"] == 60


def test_seeds_and_varied_settings(files, tmp_path, capfd):
    out = tmp_path / "out"
    words = [
        "compare",
        files["one-vector"],
        "--vary",
        "decoder.depth=1,2",
        "--seeds",
        "2",
        "--out",
        str(out),
    ]
    assert main([*words, "--json"]) == 0
    results = json.loads(capfd.readouterr().out)
    assert [result["name"] for result in results] == ["one-vector.depth=1", "one-vector.depth=2"]
    assert results[0]["parameters"] < results[1]["parameters"]
    for result in results:
        losses = []
        for seed in (0, 1):
            run = json.loads((out / f"{result['name']}.seed-{seed}" / "run.json").read_text())
            assert (
                run["train"]["seed"] == seed
                and str(run["model"]["decoder"]["depth"]) == result["name"][-1]
            )
            lines = read_log(out / f"{result['name']}.seed-{seed}" / "log.jsonl")
            losses.append(min(line["valid_loss"] for line in lines if "valid_loss" in line))
            curve = result["seeds"][seed]["curve"]
            # validated every 2 steps
            assert curve[0][3] == pytest.approx((lines[0]["loss"] + lines[1]["loss"]) / 2)
        assert losses[0] != losses[1]
        assert result["valid"]["loss"] == pytest.approx(sum(losses) / 2)
        assert result["spread"]["valid"]["loss"] == pytest.approx(
            abs(losses[0] - losses[1]) / 2**0.5
        )
        assert result["precision"].startswith(("float32", "bfloat16"))
    assert main(words) == 0
    table = capfd.readouterr().out.splitlines()
    assert "format" in table[0] and " ±0.0" in table[1]
    assert "give NAME=VALUE,VALUE" in error_of(capfd, files["one-vector"], "--vary", "depth")
    assert "differ in data.vocab" in error_of(
        capfd, files["one-vector"], "--vary", "data.vocab=20,30"
    )
    assert "--seeds is 0" in error_of(capfd, files["one-vector"], "--seeds", "0")


def test_each_seed_goes_on_from_its_own_checkpoint(files, tmp_path, capfd):
    """``{seed}`` in ``from``: a second training at a rate of nothing has the losses that the first
    one ended with."""
    words = ["--seeds", "2", "--json", "--out"]
    assert main(["compare", files["attention"], *words, str(tmp_path / "first")]) == 0
    (first,) = json.loads(capfd.readouterr().out)
    text = Path(files["attention"]).read_text().replace('tokenizer = "words"\n', "")
    full, remaining = text.split("\n[data]")
    again = tmp_path / "again.toml"
    again.write_text(
        "[model]\nfrom = "
        f'"{tmp_path}/first/attention.seed-{{seed}}"\n[data]{remaining.replace("lr = 1e-2", "lr = 1e-20")}'
    )
    assert full != text and main(["compare", str(again), *words, str(tmp_path / "again")]) == 0
    (second,) = json.loads(capfd.readouterr().out)
    for before, after in zip(first["seeds"], second["seeds"], strict=True):
        assert after["valid"]["loss"] == pytest.approx(before["valid"]["loss"], rel=1e-5)
        assert 0 < after["processor"] < 60
    assert first["seeds"][0]["valid"]["loss"] != pytest.approx(
        first["seeds"][1]["valid"]["loss"], rel=1e-3
    )


def test_a_bag_of_words_beside_a_model(tmp_path, capfd):
    draw = random.Random(0)
    labelled = [
        (label, " ".join(draw.choices(("good fine well", "bad poor ill")[label].split(), k=4)))
        for label in [0, 1] * 30
    ]
    for name, piece in (("train", labelled[:40]), ("test", labelled[40:])):
        (tmp_path / f"{name}.tsv").write_text(
            "text\tlabel\n" + "".join(f"{text}\t{label}\n" for label, text in piece)
        )
    run = tmp_path / "encoder.toml"
    run.write_text(
        f'[model]\nrecipe = "glass/encoder-1m"\nencoder.depth = 1\npool = {{ mode = "mean", '
        f"labels = 2 }}\ndim = 32\n"
        f'[data]\ntype = "Examples"\ntrain = "{tmp_path}/train.tsv"\ntokenizer = "words"\n'
        f'valid = "{tmp_path}/test.tsv"\n' + TRAIN.replace("Seq2Seq", "Classify")
    )
    words = [
        "compare",
        str(run),
        "--bag",
        "--test",
        f"{tmp_path}/test.tsv",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--json"]) == 0
    _, bag = json.loads(capfd.readouterr().out)
    assert bag["name"] == compare.BAG and bag["parameters"] == 6 + 1
    assert bag["valid"]["accuracy"] == 1 and bag["test"]["accuracy"] == 100
    assert 0 < bag["valid"]["loss"] < 0.4 and bag["tokens"] == 160 and 2**24 < bag["peak"] < 2**33
    assert main(words) == 0
    assert compare.BAG in capfd.readouterr().out


def test_taggers_are_held_to_a_test_set(tmp_path, capfd):
    for name in ("train", "test"):
        (tmp_path / f"{name}.conll").write_text(
            "Ann\tB-PER\nsaw\tO\n\nRome\tB-PLACE\nslept\tO\n\n" * 10
        )
    run = tmp_path / "tagger.toml"
    run.write_text(
        '[model]\nrecipe = "glass/encoder-1m"\nencoder.depth = 1\ndim = 32\n'
        f'[data]\ntype = "Examples"\ntrain = "{tmp_path}/train.conll"\ntokenizer = "words"\n'
        + TRAIN.replace("Seq2Seq", "Tag").replace("steps = 4", "steps = 60")
    )
    words = [
        "compare",
        str(run),
        "--test",
        f"{tmp_path}/test.conll",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert main(words) == 0
    (data,) = json.loads(capfd.readouterr().out)
    assert (
        data["test"]["sentences"] == 20 and data["test"]["f1"] == 100 and data["valid"]["f1"] == 1
    )


def test_the_memory_of_an_arm_is_its_own():
    """Not that of a greater one before it; what was freed and is kept for the next step goes back
    in between."""
    keep_freed_memory()
    reset_peak_memory()
    before = peak_memory()
    torch.ones(1 << 27)  # 512 MiB, and gone
    assert 1 << 28 < peak_memory() - before < 1 << 30
    reset_peak_memory()
    assert abs(peak_memory() - before) < 1 << 27 and 2**23 < before < 2**33


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_comparison_alone_ends_the_training_too(number, files, tmp_path):
    """A service manager sends it so; the training saves, the comparison names the way on, no
    process remains."""
    long = tmp_path / "long.toml"
    long.write_text(Path(files["attention"]).read_text().replace("steps = 4", "steps = 100000"))
    out, log = tmp_path / "out", tmp_path / "out" / "long" / "log.jsonl"
    words = [sys.executable, "-m", "glassformer", "compare", str(long), "--out", str(out)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while not log.exists() or log.read_text().count("\n") < 3:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (
        "Finishing this step" in message and "Continue with:\n  the same compare command" in message
    )
    assert f"it goes on with what is in {out}" in message
    done = int((out / "long" / "last").read_text().removeprefix("step-"))
    assert read_log(log)[-1]["step"] == done  # saved where it was, not thrown away
    with lock(out / "long", "looking"):  # nobody trains there any more
        pass


def test_a_run_that_was_cut_off_goes_on(
    files,
    tmp_path,
    monkeypatch,
    capfd,
):
    """A stopped training ends the comparison with its code; the same call then resumes it."""
    called, signals, peaks = [], iter([signal.SIGINT, None]), iter([7, 6])

    def run_one(settings, folder, resume, **options):
        called.append(resume)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").touch()
        return RunResult(folder, 1, 1.0, 1.0, next(signals))

    result = {"valid": {"loss": 1.0}, "parameters": 1, "tokens": 1, "seconds": 1.0, "curve": []}
    monkeypatch.setattr(training, "run", run_one)
    monkeypatch.setattr(training, "peak_memory", lambda: next(peaks))
    monkeypatch.setattr(training, "figures", lambda folder: result)
    words = ["compare", files["attention"], "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 130
    assert main(words) == 0
    assert called == [False, True]
    assert json.loads(capfd.readouterr().out)[0]["peak"] == 7


def test_a_run_that_fails_ends_the_comparison_with_its_sentence(files, tmp_path, capsys):
    """Runs that finished before it stay."""
    bad = tmp_path / "bad.toml"
    bad.write_text(Path(files["attention"]).read_text().replace("vocab = 64", "vocab = 5"))
    words = ["compare", files["one-vector"], str(bad), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "embed" in capsys.readouterr().err.strip().splitlines()[-1]
    data = json.loads((tmp_path / "out" / "comparison.json").read_text())["runs"]
    assert data["one-vector"]["finished"] and not data["bad"].get("finished")


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
    def run_one(settings, folder, **options):
        folder.mkdir(parents=True)
        lines = [
            {"step": step, "seconds": 9.0 if step < 4 else 0.5}
            for step in range(1, settings.train.steps + 1)
        ]
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return RunResult(folder, len(lines), 1.0, None, stopped)

    monkeypatch.setattr(training, "run", run_one)
    (arm,) = training.read_arms([files["attention"]])
    stopped: int | None = None
    assert training.steps_for(arm.settings, tmp_path / "attention", {"minutes": 2.0}) == 240
    stopped = signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        training.steps_for(arm.settings, tmp_path / "attention", {"minutes": 2.0})
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_sentence(
    files,
    tmp_path,
    capsys,
    monkeypatch,
):
    item, two, out = files["one-vector"], files["attention"], str(tmp_path / "out")
    second = tmp_path / "other.toml"
    second.write_text(
        Path(two).read_text().replace('tokenizer = "words"', 'tokenizer = "words"\nvocab = 9')
    )
    assert "data.vocab" in error_of(capsys, item, str(second), "--out", out)
    second.write_text(Path(two).read_text().replace("texts.tsv", "texts2.tsv"))
    assert "data.train" in error_of(capsys, item, str(second), "--out", out)
    second.write_text(Path(two).read_text().replace("evaluate_every = 2", "evaluate_every = 0"))
    assert "never validated" in error_of(capsys, str(second), "--out", out)
    assert "cannot be read" in error_of(capsys, item, "none.toml", "--out", out)
    assert "--tokens is 0" in error_of(capsys, item, two, "--tokens", "0", "--out", out)
    assert "--minutes is 0" in error_of(capsys, item, two, "--minutes", "0", "--out", out)
    assert "not both" in error_of(
        capsys, item, two, "--minutes", "1", "--tokens", "5", "--out", out
    )
    assert "of its own" in error_of(capsys, item, item, "--out", out)
    assert "--target" in error_of(capsys, item, "--target", "x", "--out", out)
    assert "--bag is for" in error_of(capsys, item, "--bag", "--out", out)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "by sacrebleu need it" in error_of(capsys, item, "--test", files["data"], "--out", out)
    assert not Path(out).exists()
    Path(out).mkdir()
    (Path(out) / "comparison.json").write_text('{"budget": {"tokens": 5}, "runs": {}}')
    assert "--tokens 5" in error_of(capsys, item, "--tokens", "6", "--out", out)
    (Path(out) / "comparison.json").write_text("{")
    assert "is not valid JSON" in error_of(capsys, item, "--out", out)


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "runs" / "compare").glob("*.toml")),
    ids=lambda p: p.stem,
)
def test_the_run_files_that_are_shipped_describe_models(path, shared_data):
    model = plan_run(training.read_arms([str(path)])[0].settings).shape
    assert model.embed.vocab > 0
    output = ("rnn", "lstm")
    assert bool(config.recurrent(model)) == any(name in path.stem for name in output)


def test_all_arms_have_one_plan(monkeypatch):
    """A narrow and a wide arm, each of which would have its own plan on a Zen 5, both train in
    fp32."""
    from glassformer.fast.training import execution

    monkeypatch.setattr(execution, "machine", lambda device: "AMD CPU with AVX512-BF16")
    plans = [run_file.read_run(None, {"dim": dim}) for dim in ("64", "256")]
    arms = [training.Arm(name, plan) for name, plan in zip("ab", plans, strict=True)]
    assert training.shared_precision(arms[1:])["dtype"] == "bfloat16"
    assert (
        training.shared_precision(arms)["dtype"]
        == training.shared_precision(arms[:1])["dtype"]
        == "float32"
    )
    assert training.with_precision(plans[0], "float32").train == replace(
        plans[0].train, dtype="float32", compile="no"
    )
    query = run_file.read_run(None, {"dtype": "bfloat16"})
    assert training.with_precision(query, "float32").train == replace(query.train, compile="no")


def test_steps_are_answered_with_the_budgets_that_there_are(capsys):
    assert main(["compare", "a.toml", "b.toml", "--steps", "5"]) == 2
    stderr = capsys.readouterr().err
    assert "--minutes" in stderr and "--test" not in stderr

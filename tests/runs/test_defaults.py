"""What is trained where nobody said how: from the text alone; what is said stands, the best
checkpoint is used."""

from __future__ import annotations

import os
import random
import shlex
import signal
import tomllib
from pathlib import Path

import pytest

import glassformer
from folders import read_json, read_rows
from glassformer import cli, runs, training
from glassformer import families as recipes
from glassformer.commands.parsing import split_settings
from glassformer.core.config import serial
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import resolve
from glassformer.runs import launch, run_checkpoints, run_file
from glassformer.runs.defaults import choose, objective_settings

RUNS = sorted((Path(__file__).parents[2] / "runs").glob("*.toml"))
WORDS = (
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "he",
    "for",
    "on",
    "are",
    "with",
    "as",
    "his",
)


def prose(size):
    drawn = random.Random(0)
    words = (drawn.choice(WORDS) + drawn.choice(("", "", ",", ".\n")) for _ in range(size // 2))
    return " ".join(words)[:size]


def settings(path, **changes):
    fields = {"data.train": str(path), **changes}
    return run_file.read_run(None, {**choose(fields)[0], **fields})


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(prose(20_000))
    return path


def test_a_larger_text_gets_a_larger_model_and_is_read_less_often(tmp_path):
    path = tmp_path / "text.txt"
    before = None
    for size in (2_000, 20_000, 200_000, 2_000_000, 20_000_000):
        path.write_text(prose(min(size, 200_000)) * max(1, size // 200_000))
        result = settings(path)
        recipe = recipes.find(result.model["recipe"])
        now = (recipe.dim * recipe.decoder.depth, result.data.vocab or 257)
        epochs = result.train.steps * result.train.batch * result.train.context / size
        assert before is None or (now >= before[0] and epochs <= before[1] + 1)
        assert 20 <= result.train.steps <= 6000
        assert result.data.split == "spread"
        assert result.train.early_stop
        before = now, epochs


@pytest.mark.parametrize(
    "name, value",
    [
        ("data.tokenizer", "char"),
        ("data.vocab", "300"),
        ("data.valid", "0.2"),
        ("data.split", "end"),
        ("steps", "7"),
        ("train.steps", "7"),
        ("batch", "3"),
        ("train.context", "24"),
        ("context", "24"),
        ("decoder.dropout", "0.5"),
        ("dim", "96"),
        ("recipe", "glass/4m"),
        ("optimizer.weight_decay", "0.3"),
        ("train.optimizer", '{type = "AdamW", lr = 1e-3}'),
        ("early_stop", "0"),
        ("evaluate_every", "3"),
    ],
)
def test_what_the_user_says_stands(book, name, value):
    changes = {"data.train": str(book), name: value}
    result, why = choose(changes)
    assert name not in result
    assert name.removeprefix("train.") not in result
    output = run_file.read_run(None, {**result, **changes})
    alone = run_file.read_run(None, changes)
    for piece in ("data", "train", "model"):
        pieces = name.removeprefix(f"{piece}.").split(".")[0]
        if piece == "model":
            assert output.model.get(name) == alone.model.get(name)
        elif hasattr(getattr(output, piece), pieces):
            assert getattr(getattr(output, piece), pieces) == getattr(getattr(alone, piece), pieces)
    assert str(book) in why or not why


def test_a_recipe_keeps_its_shape(book):
    result = settings(book, recipe="glass/4m")
    assert result.model == {"recipe": "glass/4m"}
    assert result.train.context is None
    assert result.train.steps * result.train.batch * 256 < 40 * 20_000  # not the fixed 1,000 steps


def test_what_goes_on_from_a_checkpoint_keeps_all_but_how_often_the_text_is_read(book, tmp_path):
    tiny = serial.change(
        recipes.find("glass/200k"), {"dim": 16, "decoder.depth": 1, "embed.vocab": 257}
    )
    glassformer.save(
        build_model(tiny), tmp_path / "tiny", train_tokenizer("byte"), layout="glassformer"
    )
    result = settings(book, **{"from": str(tmp_path / "tiny")})
    alone = run_file.read_run(None, {"from": str(tmp_path / "tiny"), "data.train": str(book)})
    assert result.model == alone.model
    assert result.data.tokenizer is None
    assert result.train.optimizer == alone.train.optimizer
    # 11 times over, not 1,000 steps
    assert result.train.batch == alone.train.batch
    assert 20 <= result.train.steps <= 110


def test_the_choice_is_a_function_of_the_text(book, tmp_path):
    changes = {"data.train": str(book)}
    first = choose(changes)
    second = tmp_path / "again.txt"
    second.write_text(book.read_text())
    assert choose(changes) == first
    assert choose({"data.train": str(second)})[0] == first[0]


GENES = "".join(random.Random(1).choices("ACGT", k=700_000))
SIGNS = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x4E00 + 2000), k=230_000)))


@pytest.mark.parametrize(
    "kind, content, tokenizer",
    [
        ("one long line without a space", GENES, "byte"),
        ("one long line of words", prose(700_000).replace("\n", " "), "bpe"),
        ("words that nothing parts", SIGNS, "bpe"),
        ("few of them", SIGNS[:5000], "byte"),
        ("code", "def f(x):\n    return x + 1\n\n" * 26_000, "bpe"),
    ],
)
def test_every_kind_of_text_has_a_tokenizer(tmp_path, kind, content, tokenizer):
    (tmp_path / "text.txt").write_text(content, encoding="utf-8")
    assert settings(tmp_path / "text.txt").data.tokenizer == tokenizer


@pytest.mark.parametrize("size", [1, 499])
def test_a_text_too_short_says_what_is_needed(tmp_path, terminal, size):
    (tmp_path / "short.txt").write_text("a" * size)
    notes = terminal.refused(f"train --data.train {tmp_path}/short.txt --out {tmp_path}/out")
    assert f"holds {size} bytes of text and at least 500 are needed" in notes
    assert notes.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [500, 5000])
def test_the_smallest_texts_train(tmp_path, size):
    (tmp_path / "small.txt").write_text(prose(size))
    result = settings(tmp_path / "small.txt", steps="2", tensorboard="false", dtype="float32")
    assert runs.run(result, tmp_path / "out").valid_loss is not None


@pytest.mark.parametrize("path", RUNS, ids=[path.stem for path in RUNS])
def test_a_run_file_means_what_it_says(path, monkeypatch, tmp_path):
    monkeypatch.setattr("glassformer.runs.defaults.choose", None)  # is not called

    def stop(plan, *args, chosen, **kwargs):
        assert plan == run_file.read_run(path)
        assert not chosen
        assert plan.train.early_stop == 0
        data = tomllib.loads(path.read_text(encoding="utf-8"))["data"]
        assert getattr(plan.data, "split", "end") == data.get("split", "end")
        raise UserError("So far.")

    monkeypatch.setattr("glassformer.runs.launch.run", stop)
    assert cli.main(["train", str(path), "--out", str(tmp_path / "out")]) == 2


@pytest.mark.parametrize("objective", ["Masked", "Seq2Seq"])
def test_other_objectives_keep_their_settings(book, objective):
    assert choose({"data.train": str(book), "train.objective": objective, "data.type": "Data"}) == (
        {},
        "",
    )


def test_a_run_whose_validation_rises_ends_and_its_best_checkpoint_is_the_one_that_is_used(
    tmp_path, terminal
):
    """The validation text is of another kind than the training text, so it is predicted worse and
    worse."""
    out = tmp_path / "out"
    (tmp_path / "train.txt").write_text("abcdefgh" * 500)
    (tmp_path / "valid.txt").write_text("".join(random.Random(2).choices("abcdefgh", k=500)))
    line = (
        f"train --data.train {tmp_path}/train.txt --data.valid {tmp_path}/valid.txt --out {out}"
        " --steps 60 --evaluate_every 2 --dtype float32 --dim 16 --decoder.depth 1 --batch 4"
        " --tensorboard false"
    )
    terminal(line)
    lines = read_rows(out / "log.jsonl")
    losses = {row["step"]: row["valid_loss"] for row in lines if "valid_loss" in row}
    best = min(losses, key=losses.__getitem__)
    last = lines[-1]["step"]
    assert last == best + 2 * choose.__globals__["PATIENCE"] < 60
    data = read_json(out / "run.json")
    assert "train.txt holds 4,000 bytes of text" in data["chosen"]
    for sentence in (
        f"Validation has not fallen since step {best}, so the run ends at step {last} of 60",
        "--resume --early-stop 0 continues.",
        f"The best checkpoint is that of step {best}",
        "bits per byte",
        data["chosen"],
    ):
        assert sentence in terminal.notes
    assert run_checkpoints.newest(out).name == f"step-{last:06d}"
    assert resolve.resolve(out).name == f"step-{best:06d}"
    before = sorted(out.iterdir())
    terminal(f"{line} --resume")
    assert f"so the run ends at step {last} of 60;" in terminal.notes
    assert sorted(out.iterdir()) == before
    terminal(f"{line} --resume --early-stop 0")
    assert "Trained 60 steps" in terminal.notes


def test_what_looks_like_a_border_of_documents_is_told(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("A story of some words and a house of glass.\n<|endoftext|>\n" * 40)
    assert 'holds "<|endoftext|>" 40 times' in choose({"data.train": str(path)})[1]
    assert 'holds "' not in choose({"data.train": str(path), "data.separator": "<|endoftext|>"})[1]


def stopped_run(book, out, monkeypatch):
    """The words of a run of 6 steps that a signal stopped after the third."""
    words = ["train", "--data.train", str(book), "--out", str(out)]
    more = [
        "--steps",
        "6",
        "--dim",
        "16",
        "--decoder.depth",
        "1",
        "--batch",
        "2",
        "--tensorboard",
        "false",
    ]
    due = training.loop.TrainStep.due
    with monkeypatch.context() as patch:

        def stop(step, every):
            if step.index == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return due(step, every)

        patch.setattr(training.loop.TrainStep, "due", stop)
        patch.setattr(
            launch.Signals,
            "notice",
            lambda self, number, frame: setattr(self, "number", number),
        )
        assert cli.main([*words, *more]) == 128 + signal.SIGTERM
    return words


def test_a_resumed_run_keeps_what_is_not_given_again(book, tmp_path, monkeypatch, terminal):
    out = tmp_path / "out"
    line = shlex.join(stopped_run(book, out, monkeypatch))
    before = read_json(out / "run.json")
    for options, differs in (
        ("--recipe glass/4m", 'recipe is "glass/200k" there and "glass/4m" here'),
        ("--dim 32", "model.dim is 16 there and 32 here"),
        ("--batch 4", "train.batch is 2 there and 4 here"),
    ):
        notes = terminal.refused(f"{line} --resume {options}")
        assert f"cannot be resumed with another config: {differs};" in notes
    terminal(f"{line} --resume")
    assert "Trained 6 steps" in terminal.notes
    assert read_json(out / "run.json") == before
    assert before["chosen"]
    line = f"train --out {out} --resume"
    terminal(f"{line} --steps 8")
    assert "goes on to 8" in terminal.notes
    sentence = "train.steps is 8 there and 3 here, and steps can only be raised; set it back"
    assert sentence in terminal.refused(f"{line} --steps 3")
    assert "goes on" not in terminal.refused(f"{line} --steps 9 --dim 32")


def test_a_run_stopped_at_once_says_how_it_goes_on(book, tmp_path, monkeypatch, terminal):
    out = tmp_path / "out"

    def stop(plan, folder, *args, **kwargs):
        if folder == out:
            out.mkdir()
            (out / "run.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.runs.launch.run", stop)
    terminal(f"train --data.train {book} --out {tmp_path}/other", code=130)
    assert terminal.notes == "\nglassformer: stopped.\n"
    terminal(f"train --data.train {book} --out {out}", code=130)
    assert "glassformer: stopped. Continue with:\n" in terminal.notes
    assert terminal.notes.endswith(f"--out {out} --resume\n")
    sentence = "is a run that has no checkpoint yet; go on with --resume"
    assert sentence in terminal.refused(f"generate {out}")


def test_a_short_run_is_validated_seldom(book):
    assert [
        settings(book, steps=str(steps)).train.evaluate_every for steps in (5, 20, 100, 1000)
    ] == [10, 10, 10, 50]


def test_the_announced_time_counts_validation(book, tmp_path, monkeypatch):
    """Six steps and six validations of what is held out, a third of a step for each of its
    batches."""
    outputs = []
    monkeypatch.setattr(launch, "duration", lambda seconds: outputs.append(seconds) or "")
    monkeypatch.setattr(launch.Live, "__call__", lambda self, step: None)
    for every in ("0", "1"):
        result = settings(
            book,
            steps="6",
            evaluate_every=every,
            dim="16",
            **{"decoder.depth": "1", "tensorboard": "false"},
        )
        runs.run(result, tmp_path / every)
    plans = [read_json(tmp_path / every / "run.json")["execution"]["seconds"] for every in "01"]
    result = settings(book)
    batches = -(-2_000 // (result.train.batch * result.train.context))
    assert outputs[0] == pytest.approx(6 * plans[0])
    assert outputs[1] >= plans[1] * (6 + 6 * batches / 3)


def test_a_border_of_documents_is_told_once(book, tmp_path, terminal):
    book.write_text("A story of some words and a house of glass.\n<|endoftext|>\n" * 40)
    options = "--steps 1 --tensorboard false --dim 16 --decoder.depth 1"
    terminal(f"train --data.train {book} --out {tmp_path}/out {options}")
    assert terminal.notes.count("--data.separator") == 1


def test_an_exportable_model_opens_in_transformers_and_llama_cpp(tmp_path, capsys):
    """The logits of transformers are the model's, and the GGUF file is read back."""
    import torch
    from torch.testing import assert_close
    from transformers import AutoModelForCausalLM

    book = tmp_path / "book.txt"
    book.write_text(prose(30_000))
    run = ["train", "--data.train", str(book), "--exportable", "--steps", "3", "--context", "32"]
    assert cli.main([*run, "--out", str(tmp_path / "run")]) == 0
    assert "recipe glass/200k-qwen3" in capsys.readouterr().err
    model, tokenizer = glassformer.load(tmp_path / "run")
    ids = torch.tensor([tokenizer.encode("the cat and the dog")])
    glassformer.convert(str(tmp_path / "run"), str(tmp_path / "hf"), layout="hf")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        assert_close(reference(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    out = tmp_path / "m.gguf"
    glassformer.convert(str(tmp_path / "run"), str(out), layout="gguf", numbers="F32")
    again, _ = glassformer.load(out)
    assert_close(again(ids).logits, model(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--recipe gpt2/124m", "for a glass recipe"),
        ("--from elsewhere", "for a glass recipe"),
        (RUNS[0], 'write recipe = "glass/1m-qwen3" there'),
    ],
)
def test_exportable_is_refused_where_it_means_nothing(words, sentence, tmp_path, capsys):
    line = ["train", *str(words).split(), "--exportable", "--out", str(tmp_path / "run")]
    assert cli.main(line) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("--objective Tag", {"data.type": "Examples", "recipe": "glass/encoder-1m"}),
        ("--train.objective Masked", {"recipe": "glass/encoder-1m"}),
        ("--objective Seq2Seq", {"data.type": "Examples", "recipe": "glass/pair-3m"}),
        ("--objective Classify --from out/base", {"data.type": "Examples"}),
        ("--objective Prefix", {}),
        ("--steps 3", {}),
    ],
)
def test_an_objective_chooses_data_and_recipe(line, settings):
    assert objective_settings(split_settings(line.split())[1]) == settings

"""What a run from a checkpoint begins with: its weights, its tokenizer, or new embeddings for
another one."""

from __future__ import annotations

import json

import pytest
import torch

from folders import squares
from glassformer import runs
from glassformer.formats import store
from glassformer.runs import run_file
from mistakes import mistake

SMALL = {
    "recipe": "glass/200k",
    "decoder.depth": 1,
    "dim": 16,
    "context": 32,
    "decoder.pattern.attention.heads": 2,
}
HOW = {"steps": 4, "batch": 2, "dtype": "float32", "tensorboard": "false", "sample_every": 0}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text(squares(300))
    train(folder, "base", **SMALL, **{"data.tokenizer": "char"})
    return folder


def train(home, out, file=None, **changes):
    settings = run_file.read_run(file, {"data.train": str(home / "text.txt"), **HOW, **changes})
    runs.run(settings, home / out)


def losses(folder):
    return [
        json.loads(line)["loss"]
        for line in (folder / "log.jsonl").read_text().splitlines()
        if "loss" in line
    ]


@pytest.mark.parametrize(
    "order", ["--from base --recipe glass/1m", "--recipe=glass/1m --from=base"]
)
def test_a_checkpoint_and_a_recipe_are_refused(order, home, monkeypatch, terminal):
    monkeypatch.chdir(home)
    notes = terminal.refused(f"train {order} --data.train text.txt --out both")
    assert notes.count("\n") == 1 and "--from" in notes and "--recipe" in notes, notes
    assert not (home / "both").exists()


def test_a_run_file_with_both_is_refused_and_one_of_them_takes_the_place_of_the_other(home):
    pair = {"model": {"from": "base", "recipe": "glass/1m"}}
    with mistake("recipe"):
        run_file.read_run(pair)
    assert run_file.read_run(
        {"model": {"recipe": "glass/1m", "dim": 8}}, {"from": "base"}
    ).model == {
        "from": "base",
        "dim": 8,
    }


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_another_tokenizer_is_refused(tokenizer, home):
    with mistake(r"data\.tokenizer .*--new-embeddings true"):
        train(
            home,
            f"refused-{tokenizer}",
            **{"from": str(home / "base"), "data.tokenizer": tokenizer},
        )
    (home / "run.toml").write_text(
        f'[model]\nrecipe = "glass/200k"\n[data]\ntokenizer = "{tokenizer}"\n'
    )
    with mistake("--new-embeddings true"):
        train(
            home,
            f"refused-{tokenizer}-file",
            str(home / "run.toml"),
            **{"from": str(home / "base")},
        )


@pytest.mark.parametrize("tokenizer", ["char", "base"])
def test_the_same_tokenizer_by_another_name_is_the_models_own(tokenizer, home):
    name = str(home / "base") if tokenizer == "base" else tokenizer
    train(home, f"plain-{tokenizer}", **{"from": str(home / "base")})
    train(home, f"named-{tokenizer}", **{"from": str(home / "base"), "data.tokenizer": name})
    assert losses(home / f"plain-{tokenizer}") == losses(home / f"named-{tokenizer}")


def test_new_embeddings_are_drawn_for_another_tokenizer(home, capfd):
    settings = {"from": str(home / "base"), "data.tokenizer": "byte", "new_embeddings": "true"}
    train(home, "anew", **settings, lr=1e-9)
    assert "drawn anew" in capfd.readouterr().err
    model, tokenizer = store.load(home / "anew")
    base, individual = store.load(home / "base")
    assert tokenizer.size == model.config.embed.vocab != individual.size
    before = dict(base.named_parameters())
    for name, weight in dict(model.named_parameters()).items():
        token = name.startswith(("embed.token", "embed.lag", "head.proj"))
        close = before[name].shape == weight.shape and torch.allclose(
            before[name], weight, atol=1e-4
        )
        assert close != token, name


def test_new_embeddings_of_the_same_size_are_not_the_old_ones(home):
    train(home, "same-size", **{"from": str(home / "base"), "new_embeddings": "true"}, lr=1e-9)
    old, new = (store.load(home / name)[0].embed.token.weight for name in ("base", "same-size"))
    assert old.shape == new.shape
    assert not torch.allclose(old, new, atol=0.01)


def test_new_embeddings_need_a_checkpoint_whose_weights_all_train(home):
    with mistake("new_embeddings"):
        train(home, "nothing", **SMALL, new_embeddings="true")
    with mistake("new_embeddings"):
        train(
            home, "lora", **{"from": str(home / "base"), "tune": "LoRA", "new_embeddings": "true"}
        )

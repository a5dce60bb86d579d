"""Losses with a model's features are those of a pass that is written by hand; ablations, a random dictionary
and random directions stand beside them; the command shows them; docs/features.md shows what is printed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import tiny
from glassformer.cli import main
from glassformer.core.nn import Tape
from glassformer.core.training.batches import Batch
from glassformer.formats import dictionaries, store
from glassformer.sight import fidelity as inspection
from glassformer.tasks.objectives import Features
from mistakes import mistake
from served import TEXT, tokenizer, worded
from test_sight import close

RESID = "decoder.blocks.0.resid"
PAGE = (Path(__file__).parents[2] / "docs/features.md").read_text(encoding="utf-8")
TEXTS = ["the cat sat on the mat and the dog sat on the log"]


@pytest.fixture(scope="module")
def model():
    model = tiny.model(worded(tiny.ALL["gpt2"]))
    tokens = torch.tensor([tokenizer().encode(TEXTS[0])[:16]])
    objective = Features(address=RESID, width=80, active=6)
    objective.attach(model, Batch(tokens[:, :-1], tokens[:, 1:]), 0)
    model.features.requires_grad_(False)
    return model


def test_losses_are_those_of_a_hook_by_hand(model):
    result = inspection.fidelity(model, tokenizer(), TEXTS, context=12)
    dictionary, losses = model.features, {name: [] for name in result.losses}
    rows = list(inspection.streams.windows(model, tokenizer(), TEXTS, 12))
    values = []
    for row in rows:
        tape = Tape(RESID)
        model(row, tape=tape)
        values.append(tape[RESID][0])
    mean = torch.cat(values).mean(0)
    hooks = {
        "model": lambda path, x: x,
        "features": lambda path, x: dictionary.decode(dictionary.encode(x)),
        "mean": lambda path, x: mean.expand_as(x),
        "zeros": lambda path, x: x * 0,
    }
    for name, hook in hooks.items():
        for row in rows:
            logits = model(row, tape=Tape(edits={RESID: hook})).logits[0, :-1]
            losses[name] += F.cross_entropy(logits, row[0, 1:], reduction="none").tolist()
        assert result.losses[name] == pytest.approx(sum(losses[name]) / len(losses[name]), abs=2e-5)
    assert result.tokens == len(losses["model"])
    assert result.active <= 6 and result.random_active <= 6
    assert result.recovered("model") == 1 and result.recovered("zeros") == 0
    assert 0 <= result.silent < 1
    assert len(model.features.W_dec) == 80, "the model has its own dictionary again"
    assert model.features is dictionary


def test_a_feature_stands_beside_a_random_direction(model):
    tape = Tape("features.active")
    row = next(iter(inspection.streams.windows(model, tokenizer(), TEXTS)))
    plain = F.cross_entropy(model(row, tape=tape).logits[0, :-1], row[0, 1:], reduction="none")
    values = tape["features.active"][0]
    number = int(values.sum(0).argmax())
    result = inspection.feature(model, tokenizer(), number, TEXTS, top=3)
    direction = model.features.W_dec[number]

    def away(path, x):
        return x - values[:, number, None] * direction

    without = F.cross_entropy(
        model(row, tape=Tape(edits={RESID: away})).logits[0, :-1], row[0, 1:], reduction="none"
    )
    fires = values[:-1, number] > 0
    assert result.ablated == pytest.approx((without - plain)[fires].mean().item(), abs=1e-5)
    assert result.random_ablated != result.ablated
    best = result.neuron.hits[0]
    assert best.value == pytest.approx(values[:, number].max().item(), abs=1e-5)
    assert len(result.logits) == 6
    gain = model.decoder.last_norm.weight
    logits = model.head.table(model.embed)[: tokenizer().size] @ (direction * gain)
    assert result.logits[0][1] == pytest.approx(logits.max().item(), abs=1e-5)
    assert result.logits[-1][1] == pytest.approx(logits.min().item(), abs=1e-5)
    assert result.random_logit > 0
    with mistake("no feature 80", "0 to 79"):
        inspection.feature(model, tokenizer(), 80, TEXTS)


def test_a_model_without_features_says_how_to_get_some():
    plain = tiny.model(worded(tiny.ALL["gpt2"]))
    with mistake("no features", "--objective Features"):
        inspection.fidelity(plain, tokenizer(), TEXTS)


def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([str(word) for word in words]) == 0
    return out.getvalue()


def test_the_command(model, tmp_path):
    plain = tiny.model(model.config)
    store.save(plain, tmp_path / "plain", tokenizer())
    sae = tmp_path / "sae"
    sae.mkdir()
    for name, content in dictionaries.contents(model.features, "plain").items():
        content(sae / name) if callable(content) else (sae / name).write_text(content)
    dictionary_args = ("--dictionary", sae)
    rows = json.loads(printed("features", tmp_path / "plain", TEXTS[0], *dictionary_args, "--json"))
    assert all(row["active"] <= 6 and len(row["features"]) <= 5 for row in rows)
    printed("features", tmp_path / "plain", *dictionary_args, "--out", tmp_path / "both")
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 3)
    table = printed("features", tmp_path / "both", "--data", text)
    assert "random dictionary" in table and "zeros" in table
    number = rows[0]["features"][0][0]
    card = printed("features", tmp_path / "both", "--data", text, "--feature", number)
    assert f"features.active[{number}]" in card and "random" in card
    why = printed("why", tmp_path / "both", TEXTS[0], f"features.pre[2,{number}]")
    assert "features.W_enc" in why
    edit = f'set_value("features.active", 0, index={number})'
    changed = json.loads(
        printed("features", tmp_path / "both", TEXTS[0], "--edit", edit, "--json", "--top", 80)
    )
    assert all(number not in dict(row["features"]) for row in changed)
    for words, sentence in (
        (("features", tmp_path / "plain", TEXTS[0]), "--objective Features"),
        (("features", tmp_path / "both", TEXTS[0], "--limit", 1), "are of texts; add --data"),
        (("features", tmp_path / "both", TEXTS[0], "--top", 0), "--top is 0"),
        (("features", tmp_path / "both"), "Give one of"),
        (("features", tmp_path / "both", TEXTS[0], "--feature", 1), "--data"),
    ):
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            assert main([str(word) for word in words]) != 0
        assert sentence in error.getvalue()


def test_the_page_shows_what_is_printed(tmp_path, monkeypatch):
    """The script and the training of docs/features.md, then each command with the output below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    script = re.search(r"^```py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
    setup = re.search(r"## Train\n\n((?:    .*\n)+)", PAGE)[1].replace("\\\n", " ").splitlines()
    for line in setup[:-1]:
        words, _, name = line.partition(" > ")
        command = [sys.executable, "-c", script, *shlex.split(words)[2:]]
        Path(name).write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    printed(*shlex.split(setup[-1])[1:])
    blocks = re.findall(
        r"^```\n\$ glassformer ([^\n]*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
    assert [block[0].split()[0] for block in blocks] == ["features", "features", "features", "why"]
    for command, output in blocks:
        close(printed(*shlex.split(command)), output)

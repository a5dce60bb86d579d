"""The history page: its numbers stand in one file, its run files train, a small cut of them gives
the same again."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from folders import read_json
from glassformer.cli import main
from glassformer.runs import run_file

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data"))
TOLD = read_json(ROOT / "docs" / "history.json")
PAGE = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
SENTENCES = {row["name"]: row for row in TOLD["sentences"]}


def benchmark():
    """benchmarks/history.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "history_benchmark", ROOT / "benchmarks" / "history.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rows_are_in_the_order_that_the_page_says():
    result = {name: row["accuracy"] for name, row in SENTENCES.items()}
    for lower, higher in (
        ("rnn", "rnn-attention"),
        ("rnn-attention", "transformer"),
        ("gpt", "word2vec"),
    ):
        assert max(result[lower]) < min(result[higher]), (lower, higher)
    assert (
        fmean(result["bert"])
        < fmean(result["transformer"])
        < fmean(result["experts"])
        < fmean(result["word2vec"])
    )
    assert all(fmean(shares) <= result["bag-of-words"][0] for shares in result.values())
    spreads = {name: max(shares) - min(shares) for name, shares in result.items()}
    assert max(spreads, key=lambda name: spreads[name]) == "bert"
    assert fmean(SENTENCES["gpt"]["reading loss"]) < fmean(SENTENCES["bert"]["reading loss"]) - 0.3


def test_the_file_shows_the_bottleneck_and_its_cure():
    rows = {row["name"]: row for row in TOLD["backwards"]}
    vector = rows["backwards-rnn"]
    attention = rows["backwards-rnn-attention"]
    assert list(vector["by length"]) == list(attention["by length"])
    assert vector["by length"]["1-4"]["exact"] > 95 > 10 > vector["by length"]["29+"]["exact"]
    assert attention["by length"]["29+"]["exact"] > 70
    assert vector["exact"] < attention["exact"]
    assert sum(item["texts"] for item in vector["by length"].values()) == 1000
    for row in rows.values():
        assert all(len(group["seeds"]) == 3 for group in row["by length"].values())
    assert max(vector["by length"]["29+"]["seeds"]) < min(attention["by length"]["29+"]["seeds"])


def test_the_page_says_what_the_run_files_say():
    runs = {
        name.partition("/")[2]: run_file.read_run(path)
        for name, path in run_file.run_files().items()
        if "history/" in name
    }
    people = benchmark().PEOPLE
    readers = [f"{name}-reads" for name in benchmark().READERS]
    assert runs.keys() == {*people, *readers, *(row["name"] for row in TOLD["backwards"])}
    assert {run.train.steps for name, run in runs.items() if "backwards" in name} == {800}
    assert "800 steps" in PAGE
    width = re.search(r"one vector of (\d+) numbers", PAGE)
    assert width is not None
    assert f"dim = {width[1]}\n" in (ROOT / "runs/history/backwards-rnn.toml").read_text()
    # whose rate is its own
    variants = {name: runs[name].train for name in people if name != "word2vec"}
    assert len(set(map(repr, variants.values()))) == 1, "one way of training for all"
    assert f"{runs['rnn'].train.steps} steps" in PAGE
    assert f"{runs['bert-reads'].train.steps} steps" in PAGE
    model = runs["rnn"].model
    attention = runs["rnn-attention"].model
    assert {key for key in model if model[key] != attention[key]} == {"pool"}, (
        "the two differ in how they read out alone"
    )
    dense = runs["transformer"].model
    experts = runs["experts"].model
    assert {key for key in dense if dense[key] != experts[key]} == {"encoder"}


@pytest.mark.slow
def test_every_run_file_takes_a_step(tmp_path, monkeypatch, capfd):
    """The whole script on a few sentences, in this process: tokenizer, vectors, readings, and all
    rows with a test."""
    history = benchmark()
    texts = [
        f"a {'fine warm' if label else 'dull cold'} film {'.' * (at % 3)}\t{label}"
        for at in range(20)
        for label in (0, 1)
    ]
    (tmp_path / "sst2").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "sst2" / f"{split}.tsv").write_text("\n".join(texts) + "\n")
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    class Here(history.Bench):
        def call(self, *words):
            capfd.readouterr()
            assert main([*map(str, words)]) == 0, words
            return capfd.readouterr().out

    rows = {row["name"]: row for row in history.sentences(Here(tmp_path, steps=1, seeds=1))}
    assert rows.keys() == {"bag-of-words", *history.PEOPLE}
    for name, row in rows.items():
        assert len(row["accuracy"]) == 1
        assert (row["reading"] is None) == (name not in ("word2vec", "bert", "gpt"))
    assert (
        rows["experts"]["parameters"]
        > rows["transformer"]["parameters"]
        == rows["bert"]["parameters"]
    )


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason="needs multi30k in the data folder")
def test_a_cut_of_the_runs_gives_the_same_losses(tmp_path):
    steps = str(TOLD["cut"]["steps"])
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "history.py"),
        "--out",
        str(tmp_path),
        "--steps",
        steps,
    ]
    environment = {**os.environ, "GLASSFORMER_DATA": str(DATA), "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [*command, "--only", "backwards"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    data = json.loads(ended.stdout)["cut"]["losses"]
    assert data.keys() == TOLD["cut"]["losses"].keys()
    for name, loss in data.items():
        assert loss == pytest.approx(TOLD["cut"]["losses"][name], rel=0.02), name

"""The history page: its numbers stand in one file, and a small cut of the runs gives the same again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glassformer.config import run_file

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data"))
TOLD: dict[str, Any] = json.loads((ROOT / "docs" / "history.json").read_text(encoding="utf-8"))


def row(part: str, name: str) -> Any:
    """A model's figures."""
    return next(one for one in TOLD[part] if one["name"] == name)


def test_all_eight_met_the_same_sentences() -> None:
    names = {one["name"] for part in ("labels", "answer") for one in TOLD[part]}
    assert names == {"bag-of-words", *(f"labels-{name}" for name in ("word2vec", "bert", "gpt", "experts"))} | {
        f"answer-{name}" for name in ("rnn", "rnn-attention", "transformer")
    }
    for part in ("labels", "answer"):
        for one in TOLD[part]:
            assert 50 < one["accuracy"] < 90 and one["seconds"] > 0 and one["parameters"] > 0, one["name"]


def test_three_seeds_keep_the_order_as_the_page_says() -> None:
    rows = {one["name"]: one["accuracy"] for one in TOLD["seeds"]["rows"]}
    one, attention, transformer = (rows[name] for name in ("one-vector", "attention", "transformer"))
    assert len(one) == len(attention) == len(transformer) == 3 and len(rows["bag-of-words"]) == 1
    assert (
        max(one) < min(attention) and max(attention) < min(transformer) and max(transformer) < rows["bag-of-words"][0]
    )
    files = [name for name in run_file.run_files() if f"runs/{name}.toml" in TOLD["seeds"]["command"]]
    runs = [run_file.read(name) for name in files]
    assert len(runs) == 3 and {(run.train.steps, type(run.train.objective).__name__) for run in runs} == {
        (300, "Classify")
    }


def test_the_file_shows_the_bottleneck_and_its_cure() -> None:
    vector, attention = row("backwards", "backwards-rnn"), row("backwards", "backwards-rnn-attention")
    assert list(vector["by length"]) == list(attention["by length"])
    assert vector["by length"]["1-4"]["exact"] > 95 > 10 > vector["by length"]["29+"]["exact"]
    assert attention["by length"]["29+"]["exact"] > 70 and vector["exact"] < attention["exact"]
    assert sum(one["texts"] for one in vector["by length"].values()) == 1000


def test_the_page_says_what_the_run_files_say() -> None:
    page = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    runs = {name: run_file.read(name) for name in run_file.run_files() if name.startswith("history/")}
    assert len(runs) == 13
    backwards = {one.train.steps for name, one in runs.items() if "backwards" in name}
    assert backwards == {800} and "800 steps" in page
    width = re.search(r"one vector of (\d+) numbers", page)
    assert width is not None and f"dim = {width[1]}\n" in (ROOT / "runs/history/backwards-rnn.toml").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason="needs multi30k in the data folder")
def test_a_cut_of_the_runs_gives_the_same_losses(tmp_path: Path) -> None:
    steps = str(TOLD["cut"]["steps"])
    command = [sys.executable, str(ROOT / "benchmarks" / "history.py"), "--out", str(tmp_path), "--steps", steps]
    environment = {**os.environ, "GLASSFORMER_DATA": str(DATA), "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [*command, "--only", "backwards"], capture_output=True, text=True, env=environment, timeout=900
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)["cut"]["losses"]
    assert found.keys() == TOLD["cut"]["losses"].keys()
    for name, loss in found.items():
        assert loss == pytest.approx(TOLD["cut"]["losses"][name], rel=0.02), name

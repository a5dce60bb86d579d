"""benchmarks/record.py: each budget trains, and every figure of its table is printed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("budget", ["45", "180", "600"])
def test_a_budget_of_the_record_goes_to_its_table(tmp_path, shared_data, budget):
    environment = {**os.environ, "GLASSFORMER_DATA": str(shared_data)}
    command = [sys.executable, str(ROOT / "benchmarks" / "record.py"), "--budgets", budget]
    command += ["--steps", "2", "--seeds", "1", "--windows", "4"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    row = json.loads(ended.stdout.splitlines()[0])
    parts = [
        f"{part}, {name}" for part in ("first", "second", "whole") for name in ("windows", "moving")
    ]
    for name in [*parts, "nanoGPT's"]:
        assert 2 < row[name] < math.log(65) + 0.5
        assert f"{budget} s  {name}: {row[name]:.4f}" in ended.stdout
    assert row["whole, moving"] != row["whole, windows"]
    log = (tmp_path / "out" / "record" / f"{budget}-0" / "log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["valid_loss"] == pytest.approx(row["whole, windows"], abs=0.01)

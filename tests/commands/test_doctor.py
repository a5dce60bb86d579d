"""What the doctor finds, and what he says to do."""

from __future__ import annotations

import json

import torch

from glassformer.cli import main
from glassformer.commands import doctor
from glassformer.fast import kernels


def test_what_there_is(capsys):
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["torch"] == torch.__version__ and data["kernels"] == kernels.path()
    assert data["threads"] == torch.get_num_threads() and data["memory_read_gb_per_s"] > 0
    assert main(["doctor"]) == 0
    assert kernels.reason() in capsys.readouterr().out


def test_what_to_do():
    well = {
        "kernels": "avx2",
        "builds": ["avx2"],
        "features": ["avx2"],
        "cores": 2,
        "threads": 2,
        "thread_pool": "torch's",
    }
    well["system"] = "Linux-x86_64"
    assert doctor.advice_for(well) == []
    (missing,) = doctor.advice_for({**well, "kernels": "torch", "builds": []})
    assert "hatch_build.py" in missing
    old = {
        **well,
        "kernels": "torch",
        "builds": [],
        "features": [],
        "why": "This processor lacks avx2.",
    }
    assert doctor.advice_for(old) == ["This processor lacks avx2."]
    (few,) = doctor.advice_for({**well, "threads": 1})
    assert few.startswith("1 of 2 cores compute")
    (alone,) = doctor.advice_for({**well, "thread_pool": None})
    assert "one core" in alone

"""What the doctor finds, and what he says to do."""

from __future__ import annotations

import pytest
import torch

from glassformer.commands import doctor
from glassformer.fast import kernels


def test_what_there_is(terminal):
    data = terminal.json("doctor")
    assert data["torch"] == torch.__version__
    assert data["kernels"] == kernels.path()
    assert data["threads"] == torch.get_num_threads()
    assert data["memory_read_gb_per_s"] > 0
    assert kernels.reason() in terminal("doctor")


WELL = {
    "kernels": "avx2",
    "builds": ["avx2"],
    "features": ["avx2"],
    "cores": 2,
    "threads": 2,
    "thread_pool": "torch's",
    "system": "Linux-x86_64",
}


OLD = {"kernels": "torch", "builds": [], "features": [], "why": "This processor lacks avx2."}


@pytest.mark.parametrize(
    "changes, advice",
    [
        ({"kernels": "torch", "builds": []}, "hatch_build.py"),
        (OLD, "This processor lacks avx2."),
        ({"threads": 1}, "1 of 2 cores compute"),
        ({"thread_pool": None}, "one core"),
    ],
)
def test_what_to_do(changes, advice):
    assert doctor.advice_for(WELL) == []
    (sentence,) = doctor.advice_for(WELL | changes)
    assert advice in sentence

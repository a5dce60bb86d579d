"""Every test and every fixture draws from seeds of its own, so that a run can be repeated and
varied."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from seeding import generator_from, seed_from

Drawn = tuple[float, float, float]


def draw():
    return random.random(), float(np.random.random()), float(torch.rand((), dtype=torch.float64))


def draw_from(seed):
    generator = generator_from(seed)
    return (
        random.Random(seed).random(),
        float(np.random.RandomState(seed).random_sample()),
        float(torch.rand((), dtype=torch.float64, generator=generator)),
    )


@pytest.fixture(scope="module")
def drawn_once():
    return draw()


@pytest.mark.parametrize("case", ["a", "b@c"])
def test_a_test_draws_from_the_seed_of_its_name(case):
    assert draw() == draw_from(
        seed_from(f"tests/test_seeding.py::test_a_test_draws_from_the_seed_of_its_name[{case}]")
    )


def test_a_fixture_draws_the_same_whichever_test_is_first(drawn_once):
    assert drawn_once == draw_from(seed_from("tests/test_seeding.py::drawn_once"))


def test_another_seed_of_the_run_gives_other_draws():
    program = "from seeding import seed_from; print(seed_from('tests/a.py::b'))"
    seeds = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "GLASSFORMER_TEST_SEED": run},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for run in ("0", "1", "1")
    ]
    assert seeds[0] != seeds[1] == seeds[2]

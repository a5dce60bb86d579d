"""Positional waves as the paper and each of its early programs draw them, against formulas written here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers.models.marian.modeling_marian as marian

import tiny
from glassformer import UserError
from glassformer import config as c
from glassformer.config import serial
from glassformer.nn import build_model

DIM, LENGTH = 16, 40


def frequencies(position: c.Sinusoidal, dim: int = DIM) -> np.ndarray:
    """What the scheme adds to the embeddings of positions 0 .. LENGTH - 1, through a model's own forward pass."""
    body = c.Stack(0, (tiny.block(c.Attention(1, head_dim=8)),), position)
    model = build_model(c.Decoder(dim, LENGTH, c.Embed(4), body), seed=1)
    torch.nn.init.zeros_(model.embed.token.weight)
    with torch.no_grad():
        return model(torch.zeros(1, LENGTH, dtype=torch.long)).hidden[0].double().numpy()


def paper(pos: int, column: int) -> float:
    """Section 3.5, to the letter."""
    angle = pos / 10_000 ** (2 * (column // 2) / DIM)
    return math.cos(angle) if column % 2 else math.sin(angle)


def timing_signal(pos: int, column: int) -> float:
    """tensor2tensor's get_timing_signal_1d, Marian's SinusoidalPositionEmbeddings, OpenNMT-py's SinusoidalConcat."""
    timescales = DIM // 2
    increment = math.log(10_000) / (timescales - 1)
    angle = pos * math.exp(-increment * (column % timescales))
    return math.sin(angle) if column < timescales else math.cos(angle)


def from_one(pos: int, column: int) -> float:
    """OpenNMT-tf's SinusoidalPositionEncoder."""
    return timing_signal(pos + 1, column)


PROGRAMS = {
    "the paper": (c.Sinusoidal(), paper),
    "tensor2tensor": (c.Sinusoidal(halves=True, endpoint=True), timing_signal),
    "OpenNMT-tf": (c.Sinusoidal(halves=True, endpoint=True, first=1), from_one),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_waves_are_those_of(name: str) -> None:
    position, formula = PROGRAMS[name]
    wanted = np.array([[formula(pos, column) for column in range(DIM)] for pos in range(LENGTH)])
    assert np.abs(frequencies(position) - wanted).max() < 5e-6
    others = [frequencies(other) for other, _ in PROGRAMS.values() if other != position]
    assert all(np.abs(other - wanted).max() > 0.1 for other in others)


@pytest.mark.parametrize("dim", [16, 15])
def test_waves_are_those_of_transformers_marian(dim: int) -> None:
    theirs = marian.MarianSinusoidalPositionalEmbedding(LENGTH, dim).create_weight().double().numpy()
    assert np.abs(frequencies(c.Sinusoidal(halves=True), dim) - theirs).max() < 5e-6
    if dim % 2 == 0:
        assert np.abs(frequencies(c.Sinusoidal(halves=True, endpoint=True), dim) - theirs).max() > 0.1


def test_halves_are_the_paper_s_waves_in_another_order() -> None:
    assert np.array_equal(
        frequencies(c.Sinusoidal(halves=True), 8), frequencies(c.Sinusoidal(), 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]]
    )


def test_a_config_saved_before_loads_with_the_same_numbers() -> None:
    said = {"type": "Sinusoidal", "theta": 10_000.0, "halves": True}
    assert serial.from_dict(c.Position, said) == c.Sinusoidal(halves=True)
    assert np.array_equal(
        frequencies(serial.from_dict(c.Position, {"type": "Sinusoidal"})), frequencies(c.Sinusoidal())
    )


def test_what_the_waves_cannot_be() -> None:
    with pytest.raises(UserError, match="dim 15 is odd; make it even"):
        frequencies(c.Sinusoidal(endpoint=True), 15)
    with pytest.raises(UserError, match=r"Sinusoidal\.theta is 0"):
        c.Sinusoidal(theta=0)
    with pytest.raises(UserError, match=r"Sinusoidal\.first is -1; give 0 or more"):
        c.Sinusoidal(first=-1)
    assert np.isfinite(frequencies(c.Sinusoidal(endpoint=True), 2)).all()

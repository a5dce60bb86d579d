"""Codes and scales: the bounds of the arithmetic, and what a search must gain."""

from __future__ import annotations

import pytest
import torch

from glassformer.fast import rounding
from mistakes import mistake
from seeding import generator_from


def weights(rows=48, inputs=100):
    return torch.randn(rows, inputs, generator=generator_from(0)) * 0.05


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [32, 64])
def test_nearest_is_within_half_a_step(bits, group):
    """The last group is a shorter one. At 4 bits one side has 7 steps, not 8, and loses up to a
    whole one there."""
    weight = weights()
    codes, scales = rounding.nearest(weight, bits, group)
    assert codes.shape == weight.shape
    assert scales.shape == (48, -(-100 // group))
    assert codes.dtype == torch.int8
    assert scales.dtype == torch.float16
    assert codes.min() >= rounding.LOWEST[bits]
    assert codes.max() <= rounding.HIGHEST[bits]
    step = scales.float().abs().repeat_interleave(group, 1)[:, :100]
    apart = (rounding.decode(codes, scales, group, torch.float32) - weight).abs()
    inside = (
        codes < rounding.HIGHEST[bits] if bits == 4 else torch.ones_like(codes, dtype=torch.bool)
    )
    assert bool((apart <= step * 0.501)[inside].all())
    assert bool((apart <= step * 1.01).all())


def test_errors_of_gaussian_weights_are_those_measured_elsewhere():
    """0.0076 of int8 and 0.097 of int4 in groups of 32 (ENGINE.md, section 1); 8 levels on one side
    give a little."""
    weight = weights(256, 1024)

    def error(rounded):
        apart = rounding.decode(*rounded, 32, torch.float32) - weight
        return float(apart.norm() / weight.norm())

    assert error(rounding.nearest(weight, 8, 32)) < 0.0077
    plain = error(rounding.nearest(weight, 4, 32))
    searched = error(rounding.searched(weight, 4, 32))
    assert 0.08 < plain < 0.098
    assert searched < 0.95 * plain


def test_a_search_serves_what_is_important():
    weight = weights(64, 64)
    matters = torch.ones(64)
    matters[::8] = 100.0
    plain = rounding.searched(weight, 4, 32)
    served = rounding.searched(weight, 4, 32, matters)

    def error(rounded):
        return float(
            ((rounding.decode(*rounded, 32, torch.float32) - weight).square() * matters).sum()
        )

    assert error(served) < 0.9 * error(plain)


def test_pairs_of_codes_share_a_byte_and_come_back():
    codes = torch.randint(-8, 8, (5, 3, 20), dtype=torch.int8)
    packed = rounding.pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.shape == (5, 3, 10)
    assert int(packed[0, 0, 0]) == int(codes[0, 0, 0]) + 8 + 16 * (int(codes[0, 0, 1]) + 8)
    assert torch.equal(rounding.unpack(packed), codes)


def test_zeros_and_the_smallest_and_largest_numbers_have_scales():
    for value in (0.0, 1e-12, 60_000.0 * 100):
        weight = torch.full((2, 32), value)
        for bits in (8, 4):
            codes, scales = rounding.searched(weight, bits, 32)
            assert bool(scales.isfinite().all() and (scales != 0).all())
            if value in (0.0, 1e-12):
                assert not codes.any()


@pytest.mark.parametrize("bits, group", [(3, 32), (16, 32), (8, 48), (4, 0)])
def test_what_cannot_be_is_refused_in_a_sentence(bits, group):
    with mistake(r"give (8 or 4|a multiple of 32)"):
        rounding.check(bits, group)


def test_weights_that_are_not_finite_are_refused():
    weight = weights()
    weight[3, 5] = float("nan")
    with mistake("NaN"):
        rounding.searched(weight, 4, 32)


def test_a_search_in_pieces_is_the_whole(monkeypatch):
    stack = torch.stack([weights(), 2 * weights()])
    matters = torch.rand(100)
    full = rounding.searched(stack, 4, 64, matters)
    monkeypatch.setattr(rounding, "AT_ONCE", 3 * 64)
    assert all(map(torch.equal, rounding.searched(stack, 4, 64, matters), full))
    alone = [rounding.searched(item, 4, 64, matters) for item in stack]
    assert all(
        torch.equal(torch.stack(side), item)
        for side, item in zip(zip(*alone, strict=True), full, strict=True)
    )

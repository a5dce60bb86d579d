"""GPTQ beside the simpler ways to round, on inputs that depend on each other."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from glassformer.fast import rounding
from glassformer.fast.quantize import gptq
from glassformer.fast.quantize.gptq import calibrated
from mistakes import mistake
from seeding import generator_from


def random_layer(inputs=96, rank=24):
    draw = generator_from(0)
    x = torch.randn(400, rank, generator=draw) @ torch.randn(rank, inputs, generator=draw)
    x = x + 0.1 * torch.randn(400, inputs, generator=draw)
    return torch.randn(40, inputs, generator=draw) * 0.05, x


def error(weight, rounded, x, group=32):
    apart = rounding.decode(*rounded, group, torch.float32) - weight
    return float((x @ apart.T).norm() / (x @ weight.T).norm())


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("inputs", [96, 100])
def test_outputs_lose_less_than_by_the_nearest_or_a_search(group, inputs):
    weight, x = random_layer(inputs)
    rounded = calibrated(weight, 4, group, x.T @ x)
    nearest = rounding.nearest(weight, 4, group)
    searched = rounding.searched(weight, 4, group)
    assert rounded[0].shape == weight.shape
    assert rounded[1].shape == nearest[1].shape
    assert error(weight, rounded, x, group) < 0.6 * error(weight, searched, x, group)
    assert error(weight, rounded, x, group) < 0.5 * error(weight, nearest, x, group)


def test_it_is_the_written_out_algorithm(monkeypatch):
    """Input after input, the rest by the inverse of what is left of H: Optimal Brain Quantization
    in a fixed order."""
    monkeypatch.setattr(gptq, "TURNS", 1)  # no scales fitted to codes
    weight, x = random_layer(32, 12)
    gram = x.T @ x
    codes, scales = calibrated(weight, 4, 32, gram)
    damped = (gram + 0.01 * gram.diagonal().mean() * torch.eye(32)).double()
    order = gram.diagonal().argsort(descending=True, stable=True).tolist()
    remaining = weight.double().clone()
    repeated = 0
    for place, c in enumerate(order):
        second_remaining = order[place:]
        inverse = torch.linalg.inv(damped[second_remaining][:, second_remaining])
        code = (remaining[:, c] / scales[:, 0].double()).round().clamp(-8, 7)
        repeated += int((code == codes[:, c]).sum())
        change = (remaining[:, c] - code * scales[:, 0].double()) / inverse[0, 0]
        remaining[:, second_remaining] -= change[:, None] * inverse[0]
    assert repeated >= 0.98 * codes.numel()  # a tie, or an output that a search alone served better


def test_scales_fitted_to_codes_lose_less(monkeypatch):
    weight, x = random_layer()
    fitted = error(weight, calibrated(weight, 4, 32, x.T @ x), x)
    monkeypatch.setattr(gptq, "TURNS", 1)
    assert fitted < 0.99 * error(weight, calibrated(weight, 4, 32, x.T @ x), x)


def test_each_scale_is_fitted_to_what_those_before_it_left():
    weight, x = random_layer()
    gram = x.T @ x
    codes, scales = rounding.nearest(weight, 4, 32)
    expected = scales.clone()
    for g in range(3):
        group = slice(32 * g, 32 * g + 32)
        remaining = (
            weight - rounding.decode(codes, expected, 32, torch.float32)
        ) @ x.T  # (N, rows)
        individual = codes[:, group].float() @ x[:, group].T
        step = (remaining * individual).sum(1) / individual.square().sum(1)
        expected[:, g] = (scales[:, g].float() + step).half()
    assert_close(gptq._fitted(weight, codes, scales, 32, gram), expected, rtol=2e-3, atol=1e-5)


def test_a_round_that_loses_more_is_not_kept(monkeypatch):
    weight, x = random_layer()
    gram = x.T @ x
    monkeypatch.setattr(
        gptq, "_descend", lambda weight, *_: torch.zeros(weight.shape, dtype=torch.int8)
    )
    codes, _ = calibrated(weight, 4, 32, gram)
    assert bool(codes.any(1).all())
    assert error(weight, calibrated(weight, 4, 32, gram), x) < 0.2


def test_blocks_of_inputs_pass_their_errors_on(monkeypatch):
    weight, x = random_layer()
    full, _ = calibrated(weight, 4, 32, x.T @ x)
    monkeypatch.setattr(gptq, "BLOCK", 16)
    codes, _ = calibrated(weight, 4, 32, x.T @ x)
    # sums in another order: a tie falls otherwise
    assert float((codes == full).float().mean()) > 0.97


def test_a_stack_is_one_table_after_another_and_an_unmet_expert_is_searched():
    weight, x = random_layer()
    stack = torch.stack([weight, weight])
    grams = torch.stack([x.T @ x, torch.zeros(96, 96)])
    codes, scales = calibrated(stack, 4, 32, grams)
    assert torch.equal(codes[0], calibrated(weight, 4, 32, grams[0])[0])
    assert torch.equal(codes[1], rounding.searched(weight, 4, 32)[0])
    assert scales.shape == (2, 40, 3)


def test_fewer_texts_than_inputs_are_enough_to_round():
    weight, x = random_layer()
    codes, scales = calibrated(weight, 4, 32, x[:3].T @ x[:3])
    assert bool(scales.isfinite().all())
    assert codes.abs().max() <= 8


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_sums_that_are_no_numbers_end_with_a_sentence(value):
    gram = torch.eye(32)
    gram[3, 3] = value
    with mistake("not finite"):
        calibrated(torch.randn(4, 32, generator=generator_from(1)), 4, 32, gram)
    with mistake("not finite"):
        gptq._factor(gram, 0.01)

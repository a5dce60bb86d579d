"""Norms and activations beside torch's, and beside their readable counterpart; whole blocks:
tests/fast/test_fused.py."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kernel_reference as reference
from glassformer.core.nn.layers import ACTIVATIONS
from glassformer.fast.kernels import stack
from glassformer.fast.kernels.shared_library import has

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("centred", [False, True])
def test_norms_are_torchs_and_the_reference_bit_for_bit(build, centred):
    if not has("norm"):
        pytest.skip("torch has norms of its own; a library without them: python hatch_build.py")
    for rows, width in ((1, 16), (3, 40), (2, 2048), (1, 1), (5, 31)):
        for dtype in DTYPES:
            x, gain, shift = (
                (torch.randn(*size) * 3 + 1).to(dtype)
                for size in ((rows, width), (width,), (width,))
            )
            for plus in (None, shift):
                y = stack.norm(x, stack.Norm.of(gain, plus, 1e-5, centred))
                assert torch.equal(y, reference.normed(x, gain, plus, 1e-5, centred).to(dtype)), (
                    rows,
                    width,
                    dtype,
                )
                wide = [None if item is None else item.double() for item in (gain, plus)]
                truth = (
                    F.layer_norm(x.double(), (width,), *wide, 1e-5)
                    if centred
                    else _rms(x.double(), *wide)
                )
                bound = 1e-4 if dtype == torch.float32 else 2e-2
                assert torch.allclose(y.double(), truth, rtol=bound, atol=bound)


def _rms(x, gain, shift):
    y = F.rms_norm(x, x.shape[-1:], gain, 1e-5)
    return y if shift is None else y + shift


@pytest.mark.parametrize("name", stack.ACTIVATIONS)
def test_activations_are_torchs_and_the_reference_bit_for_bit(build, name):
    if not has("activation"):
        pytest.skip(
            "torch has activations of its own; a library without them: python hatch_build.py"
        )
    hard = torch.tensor([0.0, 1e-30, -1e-30, 20.0, -20.0, 90.0, -90.0, 1e5, -1e5, torch.nan])
    for x in (torch.randn(1003) * 4, hard, torch.randn(3, 64).bfloat16()):
        y = stack.activation(name, x)
        assert torch.equal(y.nan_to_num(7), reference.activated(name, x).to(x.dtype).nan_to_num(7))
        truth = ACTIVATIONS[name](x.double())
        bound = 1e-6 if x.dtype == torch.float32 else 8e-3
        assert torch.allclose(y.double(), truth, rtol=bound, atol=bound * 3, equal_nan=True)


def test_a_row_has_the_same_bits_among_many_and_by_several_threads(build):
    if not has("norm"):
        pytest.skip("torch has norms of its own; a library without them: python hatch_build.py")
    threads = torch.get_num_threads()
    norm = stack.Norm.of(None, None, 1e-5, False)
    try:
        for dtype in DTYPES:
            x = torch.randn(333, 131).to(dtype)  # several pieces of rows and of numbers, none full
            torch.set_num_threads(1)
            normed = torch.cat([stack.norm(row[None], norm) for row in x])
            activated = torch.cat([stack.activation("silu", row[None]) for row in x])
            for number in (1, 3):
                torch.set_num_threads(number)
                assert torch.equal(stack.norm(x, norm), normed)
                assert torch.equal(stack.activation("silu", x), activated)
    finally:
        torch.set_num_threads(threads)

"""Products beside fp64, and beside their readable counterpart."""

from __future__ import annotations

import pytest
import torch

from glassformer.nn.kernels import matmul, pack_bf16, pack_fp32, pack_int4, pack_int8, reference

PACKS = {"int8": (pack_int8, 127), "int4": (pack_int4, 7)}


def drawn(kind: str, n: int, c: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight of whole numbers and its scales."""
    top = PACKS[kind][1]
    weight = torch.randint(-top - 1, top + 1, (n, c), dtype=torch.int8)
    return weight, (torch.rand(n, -(-c // 32)) / top).half()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_products_are_near_the_truth(build: str, kind: str) -> None:
    weight, scales = drawn(kind, 70, 200)
    packed, bias, x = PACKS[kind][0](weight, scales), torch.randn(70), torch.randn(2, 9, 200)
    truth = x.double() @ packed.matrix().double().T + bias
    y = matmul(x, packed, bias)
    assert y.shape == (2, 9, 70) and y.dtype == x.dtype
    assert (y - truth).norm() < 0.01 * truth.norm(), "activations of 8 bits: about 0.6 %"


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_products_are_the_reference_bit_for_bit(build: str, kind: str) -> None:
    for m, n, c in ((1, 16, 32), (1, 50, 100), (5, 33, 64), (40, 100, 96), (3, 1, 1)):
        weight, scales = drawn(kind, n, c)
        packed, bias = PACKS[kind][0](weight, scales), torch.randn(n)
        for x in (torch.randn(m, c), torch.randn(m, c).bfloat16(), torch.zeros(m, c)):
            for plus in (None, bias):
                expected = reference.integer_product(x, weight, scales, plus).to(x.dtype)
                assert torch.equal(matmul(x, packed, plus), expected), (m, n, c)


def test_what_is_no_number_does_not_hide(build: str) -> None:
    weight, scales = drawn("int8", 20, 64)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = torch.randn(3, 64)
        x[1, 40] = bad
        y = matmul(x, pack_int8(weight, scales))
        assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


def test_rows_that_are_no_rows_and_rows_of_a_wrong_width(build: str) -> None:
    packed = pack_fp32(torch.randn(5, 8))
    assert matmul(torch.zeros(2, 0, 8), packed).shape == (2, 0, 5)
    with pytest.raises(ValueError, match="rows of 7 numbers for a matrix of 8 inputs"):
        matmul(torch.zeros(2, 7), packed)


def test_float_products_are_near_the_truth(build: str) -> None:
    weight, x, bias = torch.randn(70, 201), torch.randn(9, 201), torch.randn(70)
    truth = x.double() @ weight.double().T + bias
    assert (matmul(x, pack_fp32(weight), bias) - truth).norm() < 1e-6 * truth.norm()
    truth = x.bfloat16().double() @ weight.bfloat16().double().T + bias
    assert (matmul(x, pack_bf16(weight), bias.bfloat16()) - truth).norm() < 1e-2 * truth.norm()
    assert matmul(x.bfloat16(), pack_bf16(weight)).dtype == torch.bfloat16

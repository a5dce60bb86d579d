"""What is packed comes back; products beside fp64, and beside their readable counterpart."""

from __future__ import annotations

import pytest
import torch

import kernel_reference as reference
from glassformer.fast.kernels import (
    matmul,
    matrices,
    pack_bf16,
    pack_fp32,
    pack_int4,
    pack_int8,
    use,
)
from glassformer.fast.kernels.matrices import _paneled, _unpaneled

SIZES = [(1, 1), (16, 32), (17, 33), (50, 100), (64, 128), (3, 65)]


def test_integers_come_back(build):
    for pack, low, high in ((pack_int8, -128, 127), (pack_int4, -8, 7)):
        for n, c in SIZES:
            weight = torch.randint(low, high + 1, (n, c), dtype=torch.int8)
            scales = torch.rand(n, -(-c // 32)).half()
            packed = pack(weight, scales)
            again, repeated = packed.integers()
            assert torch.equal(again, weight)
            assert torch.equal(repeated, scales.float())
            spread = scales.float().repeat_interleave(32, 1)[:, :c]
            assert torch.equal(packed.matrix(), weight.float() * spread)


def test_floats_come_back(build):
    for n, c in SIZES:
        weight = torch.randn(n, c)
        assert torch.equal(pack_fp32(weight).matrix(), weight)
        assert torch.equal(pack_bf16(weight).matrix(), weight.bfloat16())


def test_bits_a_weight(build):
    weight = torch.zeros(64, 128, dtype=torch.int8)
    scales = torch.ones(64, 4)
    assert pack_int8(weight, scales).nbytes * 8 == 8.5 * weight.numel()
    assert pack_fp32(weight.float()).nbytes == 4 * weight.numel()
    if build != "torch":  # which leaves a byte to each
        assert pack_int4(weight, scales).nbytes * 8 == 4.5 * weight.numel()


def test_what_cannot_be_packed_is_refused():
    weight = torch.zeros(4, 32, dtype=torch.int8)
    for scales, bad, why in (
        (torch.ones(4, 2), weight, "must be int8 with scales"),
        (torch.ones(4, 1), weight.float(), "must be int8 with scales"),
        (torch.full((4, 1), 1e5), weight, "fp16"),
        (torch.ones(4, 1), weight + 8, "from -8 to 7"),
    ):
        with pytest.raises(ValueError, match=why):
            pack_int4(bad, scales)


def test_large_matrices_come_back_from_large_pages(build):
    weight = torch.randn(1030, 1100)  # 4.3 MiB: two large pages and a rest
    packed = pack_fp32(weight)
    assert torch.equal(packed.matrix(), weight)
    assert build == "torch" or packed.data.data_ptr() % (1 << 21) == 0


@pytest.mark.parametrize("rows, step", [(16, 1), (20, 4), (33, 2)])
def test_a_panel_holds_sixteen_rows_step_by_step(rows, step):
    matrix = torch.arange(rows * 8).view(rows, 8) + 1
    panels = _paneled(matrix, step)
    assert panels.shape == (-(-rows // 16), 8 // step, 16, step)
    for row in range(rows):
        for column in range(8):
            assert panels[row // 16, column // step, row % 16, column % step] == matrix[row, column]
    full = _unpaneled(panels)
    assert torch.equal(full[:rows], matrix)
    assert not full[rows:].any()


PACKS = {"int8": (pack_int8, 127), "int4": (pack_int4, 7)}


def drawn(kind, n, c):
    """A weight of whole numbers and its scales."""
    top = PACKS[kind][1]
    weight = torch.randint(-top - 1, top + 1, (n, c), dtype=torch.int8)
    return weight, (torch.rand(n, -(-c // 32)) / top).half()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_products_are_near_the_truth(build, kind):
    weight, scales = drawn(kind, 70, 200)
    packed = PACKS[kind][0](weight, scales)
    bias = torch.randn(70)
    x = torch.randn(2, 9, 200)
    truth = x.double() @ packed.matrix().double().T + bias
    y = matmul(x, packed, bias)
    assert y.shape == (2, 9, 70)
    assert y.dtype == x.dtype
    assert (y - truth).norm() < 0.01 * truth.norm(), "activations of 8 bits: about 0.6 %"


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_products_are_the_reference_bit_for_bit(build, kind):
    for m, n, c in ((1, 16, 32), (1, 50, 100), (5, 33, 64), (40, 100, 96), (3, 1, 1)):
        weight, scales = drawn(kind, n, c)
        packed = PACKS[kind][0](weight, scales)
        bias = torch.randn(n)
        for x in (torch.randn(m, c), torch.randn(m, c).bfloat16(), torch.zeros(m, c)):
            for plus in (None, bias):
                expected = reference.integer_product(x, weight, scales, plus).to(x.dtype)
                assert torch.equal(matmul(x, packed, plus), expected), (m, n, c)


def test_what_is_no_number_does_not_hide(build):
    weight, scales = drawn("int8", 20, 64)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = torch.randn(3, 64)
        x[1, 40] = bad
        y = matmul(x, pack_int8(weight, scales))
        assert y[1].isnan().all()
        assert y[[0, 2]].isfinite().all()


def test_rows_that_are_no_rows_and_rows_of_a_wrong_width(build):
    packed = pack_fp32(torch.randn(5, 8))
    assert matmul(torch.zeros(2, 0, 8), packed).shape == (2, 0, 5)
    with pytest.raises(ValueError, match="rows of 7 numbers for a matrix of 8 inputs"):
        matmul(torch.zeros(2, 7), packed)


def test_float_products_are_near_the_truth(build):
    weight = torch.randn(70, 201)
    x = torch.randn(9, 201)
    bias = torch.randn(70)
    truth = x.double() @ weight.double().T + bias
    assert (matmul(x, pack_fp32(weight), bias) - truth).norm() < 1e-6 * truth.norm()
    truth = x.bfloat16().double() @ weight.bfloat16().double().T + bias
    assert (matmul(x, pack_bf16(weight), bias.bfloat16()) - truth).norm() < 1e-2 * truth.norm()
    assert matmul(x.bfloat16(), pack_bf16(weight)).dtype == torch.bfloat16


def test_float_products_are_the_reference_bit_for_bit(build):
    if build == "torch":
        pytest.skip("torch promises no order of its sums")
    for m, n, c in ((1, 16, 32), (1, 50, 101), (25, 33, 64), (2, 100, 600), (3, 1, 1)):
        weight = torch.randn(n, c)
        x = torch.randn(m, c)
        for plus in (None, torch.randn(n)):
            assert torch.equal(
                matmul(x, pack_fp32(weight), plus), reference.float_product(x, weight, plus)
            )
            rounded = reference.float_product(x.bfloat16(), weight.bfloat16(), plus)
            assert torch.equal(matmul(x.bfloat16(), pack_bf16(weight), plus), rounded.bfloat16()), (
                m,
                n,
                c,
            )


@pytest.mark.parametrize("kind", ["int8", "int4", "bf16", "fp32"])
def test_a_rows_bits_are_its_own(build, kind):
    """Alone or with others, wherever it stands among them, by one thread or two."""
    if build == "torch" and kind not in PACKS:
        pytest.skip("torch promises no order of its sums")
    n = 200
    c = 1100  # several blocks of inputs
    if kind in PACKS:
        packed = PACKS[kind][0](*drawn(kind, n, c))
    else:
        packed = (pack_bf16 if kind == "bf16" else pack_fp32)(torch.randn(n, c))
    x = torch.randn(512, c)
    bias = torch.randn(n)
    threads = torch.get_num_threads()
    if kind == "bf16":
        x = x.bfloat16()
    full = matmul(x, packed, bias)
    few = build == "torch"  # which is slow
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            for count in (1, 5, 300) if few else (*range(1, 30), 100, 255, 256, 257, 300, 511, 512):
                for first in {0, 512 - count}:
                    assert torch.equal(
                        matmul(x[first : first + count], packed, bias), full[first : first + count]
                    )
    finally:
        torch.set_num_threads(threads)


def test_torchs_path_in_slices_is_the_whole(monkeypatch):
    weight, scales = drawn("int8", 70, 64)
    bias = torch.randn(70)
    x = torch.randn(3, 64)
    with use("torch"):
        packed = pack_int8(weight, scales)
        full = matmul(x, packed, bias)
        monkeypatch.setattr(matrices, "AT_ONCE", 60)  # 20 outputs at a time
        assert torch.equal(matmul(x, packed, bias), full)

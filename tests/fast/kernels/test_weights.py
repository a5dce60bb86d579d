"""What is packed comes back, whatever its size."""

from __future__ import annotations

import pytest
import torch

from glassformer.fast.kernels import pack_bf16, pack_fp32, pack_int4, pack_int8
from glassformer.fast.kernels.weights import _paneled, _unpaneled

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

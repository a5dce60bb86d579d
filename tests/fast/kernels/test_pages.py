"""Attention over pages beside torch's own, for ragged sequences with grouped heads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kernel_reference as reference
from glassformer.fast.kernels import PAGE, Pages, paged_attention


def filled(
    lengths: list[int], kv_heads: int, dim: int, dtype: torch.dtype
) -> tuple[Pages, torch.Tensor, list]:
    """Pages in a shuffled order with sequences of these lengths; their table, and the keys and
    values themselves."""
    need = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(need) + 3)
    pages, table = (
        Pages.empty(len(order), kv_heads, dim, dtype),
        torch.zeros(len(lengths), max(need), dtype=torch.int32),
    )
    outputs, taken = [], 0
    for row, (length, count) in enumerate(zip(lengths, need, strict=True)):
        table[row, :count] = order[taken : taken + count]
        taken += count
        k, v = (torch.randn(length, kv_heads, dim).to(dtype) for _ in range(2))
        at = torch.arange(length)
        slots = table[row, at // PAGE].long() * PAGE + at % PAGE
        pages.write(k, v, slots)
        assert all(torch.equal(a, b) for a, b in zip(pages.gather(slots), (k, v), strict=True))
        outputs.append((k, v))
    return pages, table, outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads,kv_heads", [(4, 4), (8, 2), (6, 1)])
def test_ragged_rows_are_torchs_attention(build, dtype, heads, kv_heads):
    lengths, dim = [1, 32, 33, 700], 24
    pages, table, output = filled(lengths, kv_heads, dim, dtype)
    rows = torch.tensor([0, 1, 2, 3, 3, 3], dtype=torch.int32)
    observed = torch.tensor([1, 32, 33, 600, 601, 700], dtype=torch.int32)
    q = torch.randn(6, heads, dim).to(dtype)
    for window in (None, 20):
        y = paged_attention(q, pages, table, rows, observed, 0.3, window=window)
        for t, (row, length) in enumerate(zip(rows.tolist(), observed.tolist(), strict=True)):
            first = 0 if window is None else max(0, length - window)
            k, v = (item[first:length].float().transpose(0, 1)[None] for item in output[row])
            item = F.scaled_dot_product_attention(
                q[t].float()[None, :, None], k, v, scale=0.3, enable_gqa=True
            )
            bound = 2e-6 if dtype == torch.float32 else 1e-2
            assert torch.allclose(y[t].float(), item[0, :, 0], rtol=bound, atol=bound), (t, window)


@pytest.mark.parametrize("length", [512, 1024, 1025])
def test_the_first_key_of_a_chunk_is_not_lost(build, length):
    """Keys are cut in parts of 512: the last key alone in its part weighs most."""
    pages, table, ((k, v),) = filled([length], 2, 16, torch.float32)
    q = 2 * k[-1].repeat_interleave(2, 0)[None]
    row, observed = torch.tensor([0], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    k, v = (item.double().transpose(0, 1)[None] for item in (k, v))
    truth = F.scaled_dot_product_attention(
        q.double()[:, :, None], k, v, scale=0.3, enable_gqa=True
    )[:, :, 0]
    y = paged_attention(q, pages, table, row, observed, 0.3)
    assert torch.allclose(y.double(), truth, rtol=2e-6, atol=2e-6)


def test_softcap_and_bias(build):
    pages, table, ((k, v),) = filled([50], 2, 16, torch.float32)
    q, bias = torch.randn(1, 4, 16), torch.randn(4, 8)
    k, v = (item.repeat_interleave(2, 1) for item in (k, v))
    scores = torch.einsum("hd,khd->hk", q[0], k) * 0.5
    scores = 3 * torch.tanh(scores / 3)
    back = (49 - torch.arange(50)).clamp(max=7)
    truth = torch.einsum("hk,khd->hd", (scores + bias[:, back]).softmax(-1), v)
    row, length = torch.tensor([0], dtype=torch.int32), torch.tensor([50], dtype=torch.int32)
    y = paged_attention(q, pages, table, row, length, 0.5, softcap=3.0, bias=bias)
    assert torch.allclose(y[0], truth, rtol=2e-6, atol=2e-6)


def test_pages_are_copied_whole_and_hold_even_heads():
    pages, _, _ = filled([40], 2, 8, torch.bfloat16)
    pages.copy(torch.tensor([0, 1]), torch.tensor([3, 4]))
    # what nobody wrote may be no number
    for piece in (pages.keys.view(torch.int16), pages.values.view(torch.int16)):
        assert torch.equal(piece[0], piece[3]) and torch.equal(piece[1], piece[4])
    with pytest.raises(ValueError, match="even"):
        Pages.empty(1, 2, 7, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_the_reference_bit_for_bit_whoever_else_is_there(build, dtype):
    if build == "torch":
        pytest.skip("torch promises no order of its sums")
    lengths, heads, kv_heads, dim = [1, 45, 600, 1100], 6, 2, 24
    pages, table, output = filled(lengths, kv_heads, dim, dtype)
    observed = torch.tensor([1, *range(30, 46), *range(500, 520), 600, 1100], dtype=torch.int32)
    rows = torch.tensor([0, *[1] * 16, *[2] * 21, 3], dtype=torch.int32)
    q, bias = torch.randn(len(rows), heads, dim).to(dtype), torch.randn(heads, 40)
    for window, softcap, plus in ((None, None, None), (50, 5.0, bias), (700, None, bias)):
        options = (0.3, window, softcap, plus)
        full = paged_attention(q, pages, table, rows, observed, *options)
        for t in (
            (0, 9, 16, 29, 38) if window is None else (17, 38) if window == 700 else (16, 36, 38)
        ):
            alone = paged_attention(
                q[t : t + 1], pages, table, rows[t : t + 1], observed[t : t + 1], *options
            )
            k, v = (
                item[: observed[t]].repeat_interleave(heads // kv_heads, 1)
                for item in output[rows[t]]
            )
            assert torch.equal(alone, full[t : t + 1])
            expected = reference.attention_row(q[t], k, v, *options).to(dtype)
            assert torch.equal(alone[0], expected), (t, options[:3])


def test_a_token_sees_nothing_of_later_keys(build):
    if build == "torch":
        pytest.skip("torch multiplies what is not seen by zero")
    pages, table, ((k, v),) = filled([64], 1, 16, torch.float32)
    q, observed = torch.randn(12, 2, 16), torch.arange(30, 42, dtype=torch.int32)
    rows = torch.zeros(12, dtype=torch.int32)
    before = paged_attention(q, pages, table, rows, observed, 0.3)
    pages.write(
        k[35:] * torch.nan,
        v[35:] * torch.nan,
        table[0, torch.arange(35, 64) // 32].long() * 32 + torch.arange(35, 64) % 32,
    )
    after = paged_attention(q, pages, table, rows, observed, 0.3)
    assert torch.equal(before[:6], after[:6]) and after[6:].isnan().all()


@pytest.mark.parametrize("dim", [64, 112, 200])
def test_heads_of_any_width_are_the_reference_bit_for_bit(build, dim):
    """Values are weighed a few registers at a time, then by what remains of a head."""
    if build == "torch":
        pytest.skip("torch promises no order of its sums")
    for dtype in (torch.float32, torch.bfloat16):
        pages, table, ((k, v),) = filled([40], 2, dim, dtype)
        q, observed = (
            torch.randn(3, 4, dim).to(dtype),
            torch.tensor([38, 39, 40], dtype=torch.int32),
        )
        y = paged_attention(q, pages, table, torch.zeros(3, dtype=torch.int32), observed, 0.1)
        for t, length in enumerate(observed.tolist()):
            keys, values = (item[:length].repeat_interleave(2, 1) for item in (k, v))
            expected = reference.attention_row(q[t], keys, values, 0.1, None, None, None).to(dtype)
            assert torch.equal(y[t], expected), (dtype, t)

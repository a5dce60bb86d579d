"""Attention over pages beside torch's own, for ragged sequences with grouped heads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kernel_reference as reference
from glassformer.fast.kernels import PAGE, Pages, paged_attention


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def filled(lengths, kv_heads, dim, dtype=torch.float32):
    """Pages in a shuffled order with sequences of these lengths; their table, and the keys and
    values themselves."""
    need = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(need) + 3)
    pages = Pages.empty(len(order), kv_heads, dim, dtype)
    table = torch.zeros(len(lengths), max(need), dtype=torch.int32)
    outputs = []
    taken = 0
    for row, (length, count) in enumerate(zip(lengths, need, strict=True)):
        table[row, :count] = order[taken : taken + count]
        taken += count
        k, v = torch.randn(2, length, kv_heads, dim).to(dtype)
        slots = slots_of(table[row], torch.arange(length))
        pages.write(k, v, slots)
        assert all(map(torch.equal, pages.gather(slots), (k, v)))
        outputs.append((k, v))
    return pages, table, outputs


def slots_of(row, places):
    return row[places // PAGE].long() * PAGE + places % PAGE


def torchs(q, k, v, scale):
    """torch's attention of one query to all keys, in the format of the query."""
    k, v = (item.to(q.dtype).transpose(0, 1)[None] for item in (k, v))
    y = F.scaled_dot_product_attention(q[None, :, None], k, v, scale=scale, enable_gqa=True)
    return y[0, :, 0]


@pytest.fixture
def compiled(build):
    if build == "torch":
        pytest.skip("torch promises no order of its sums, and multiplies what is not seen by zero")


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("heads,kv_heads", [(4, 4), (8, 2), (6, 1)])
def test_ragged_rows_are_torchs_attention(build, dtype, bound, heads, kv_heads):
    pages, table, output = filled([1, 32, 33, 700], kv_heads, 24, dtype)
    rows = ints(0, 1, 2, 3, 3, 3)
    observed = ints(1, 32, 33, 600, 601, 700)
    q = torch.randn(6, heads, 24).to(dtype)
    for window in (None, 20):
        y = paged_attention(q, pages, table, rows, observed, 0.3, window=window)
        for t, (row, length) in enumerate(zip(rows.tolist(), observed.tolist(), strict=True)):
            first = 0 if window is None else max(0, length - window)
            truth = torchs(q[t].float(), *(item[first:length] for item in output[row]), 0.3)
            assert torch.allclose(y[t].float(), truth, rtol=bound, atol=bound), (t, window)


@pytest.mark.parametrize("length", [512, 1024, 1025])
def test_the_first_key_of_a_chunk_is_not_lost(build, length):
    """Keys are cut in parts of 512: the last key alone in its part weighs most."""
    pages, table, ((k, v),) = filled([length], 2, 16)
    q = 2 * k[-1].repeat_interleave(2, 0)[None]
    y = paged_attention(q, pages, table, ints(0), ints(length), 0.3)
    assert torch.allclose(y[0].double(), torchs(q[0].double(), k, v, 0.3), rtol=2e-6, atol=2e-6)


def test_softcap_and_bias(build):
    pages, table, ((k, v),) = filled([50], 2, 16)
    q = torch.randn(1, 4, 16)
    bias = torch.randn(4, 8)
    k, v = (item.repeat_interleave(2, 1) for item in (k, v))
    scores = 3 * torch.tanh(torch.einsum("hd,khd->hk", q[0], k) * 0.5 / 3)
    back = (49 - torch.arange(50)).clamp(max=7)
    truth = torch.einsum("hk,khd->hd", (scores + bias[:, back]).softmax(-1), v)
    y = paged_attention(q, pages, table, ints(0), ints(50), 0.5, softcap=3.0, bias=bias)
    assert torch.allclose(y[0], truth, rtol=2e-6, atol=2e-6)


def test_pages_are_copied_whole_and_hold_even_heads():
    pages, _, _ = filled([40], 2, 8, torch.bfloat16)
    pages.copy(torch.tensor([0, 1]), torch.tensor([3, 4]))
    # what nobody wrote may be no number
    for piece in (pages.keys.view(torch.int16), pages.values.view(torch.int16)):
        assert torch.equal(piece[0], piece[3])
        assert torch.equal(piece[1], piece[4])
    with pytest.raises(ValueError, match="even"):
        Pages.empty(1, 2, 7, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_the_reference_bit_for_bit_whoever_else_is_there(compiled, dtype):
    heads = 6
    kv_heads = 2
    dim = 24
    pages, table, output = filled([1, 45, 600, 1100], kv_heads, dim, dtype)
    observed = ints(1, *range(30, 46), *range(500, 520), 600, 1100)
    rows = ints(0, *[1] * 16, *[2] * 21, 3)
    q = torch.randn(len(rows), heads, dim).to(dtype)
    bias = torch.randn(heads, 40)
    for window, softcap, plus, places in (
        (None, None, None, (0, 9, 16, 29, 38)),
        (50, 5.0, bias, (16, 36, 38)),
        (700, None, bias, (17, 38)),
    ):
        options = (0.3, window, softcap, plus)
        full = paged_attention(q, pages, table, rows, observed, *options)
        for t in places:
            token = slice(t, t + 1)
            alone = paged_attention(q[token], pages, table, rows[token], observed[token], *options)
            assert torch.equal(alone, full[token])
            cached = (item[: observed[t]] for item in output[rows[t]])
            k, v = (item.repeat_interleave(heads // kv_heads, 1) for item in cached)
            expected = reference.attention_row(q[t], k, v, *options).to(dtype)
            assert torch.equal(alone[0], expected), (t, options[:3])


def test_a_token_sees_nothing_of_later_keys(compiled):
    pages, table, ((k, v),) = filled([64], 1, 16)
    args = (torch.randn(12, 2, 16), pages, table, ints(*[0] * 12), ints(*range(30, 42)), 0.3)
    before = paged_attention(*args)
    slots = slots_of(table[0], torch.arange(35, 64))
    pages.write(k[35:] * torch.nan, v[35:] * torch.nan, slots)
    after = paged_attention(*args)
    assert torch.equal(before[:6], after[:6])
    assert after[6:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 112, 200])
def test_heads_of_any_width_are_the_reference_bit_for_bit(compiled, dim, dtype):
    """Values are weighed a few registers at a time, then by what remains of a head."""
    pages, table, (output,) = filled([40], 2, dim, dtype)
    q = torch.randn(3, 4, dim).to(dtype)
    y = paged_attention(q, pages, table, ints(0, 0, 0), ints(38, 39, 40), 0.1)
    for t, length in enumerate((38, 39, 40)):
        keys, values = (item[:length].repeat_interleave(2, 1) for item in output)
        expected = reference.attention_row(q[t], keys, values, 0.1, None, None, None).to(dtype)
        assert torch.equal(y[t], expected), t

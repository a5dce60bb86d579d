"""Attention over pages beside torch's own, for ragged sequences with grouped heads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from glassformer.nn.kernels import PAGE, Pages, paged_attention


def filled(lengths: list[int], kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[Pages, torch.Tensor, list]:
    """Pages in a shuffled order with sequences of these lengths; their table, and the keys and values themselves."""
    need = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(need) + 3)
    pages, table = (
        Pages.empty(len(order), kv_heads, dim, dtype),
        torch.zeros(len(lengths), max(need), dtype=torch.int32),
    )
    told, taken = [], 0
    for row, (length, count) in enumerate(zip(lengths, need, strict=True)):
        table[row, :count] = order[taken : taken + count]
        taken += count
        k, v = (torch.randn(length, kv_heads, dim).to(dtype) for _ in range(2))
        at = torch.arange(length)
        slots = table[row, at // PAGE].long() * PAGE + at % PAGE
        pages.write(k, v, slots)
        assert all(torch.equal(a, b) for a, b in zip(pages.read(slots), (k, v), strict=True))
        told.append((k, v))
    return pages, table, told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads,kv_heads", [(4, 4), (8, 2), (6, 1)])
def test_ragged_rows_are_torchs_attention(build: str, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    lengths, dim = [1, 32, 33, 700], 24
    pages, table, told = filled(lengths, kv_heads, dim, dtype)
    rows = torch.tensor([0, 1, 2, 3, 3, 3], dtype=torch.int32)
    seen = torch.tensor([1, 32, 33, 600, 601, 700], dtype=torch.int32)
    q = torch.randn(6, heads, dim).to(dtype)
    for window in (None, 20):
        y = paged_attention(q, pages, table, rows, seen, 0.3, window=window)
        for t, (row, length) in enumerate(zip(rows.tolist(), seen.tolist(), strict=True)):
            first = 0 if window is None else max(0, length - window)
            k, v = (one[first:length].float().transpose(0, 1)[None] for one in told[row])
            one = F.scaled_dot_product_attention(q[t].float()[None, :, None], k, v, scale=0.3, enable_gqa=True)
            bound = 2e-6 if dtype == torch.float32 else 1e-2
            assert torch.allclose(y[t].float(), one[0, :, 0], rtol=bound, atol=bound), (t, window)


def test_softcap_and_bias(build: str) -> None:
    pages, table, ((k, v),) = filled([50], 2, 16, torch.float32)
    q, bias = torch.randn(1, 4, 16), torch.randn(4, 8)
    k, v = (one.repeat_interleave(2, 1) for one in (k, v))
    scores = torch.einsum("hd,khd->hk", q[0], k) * 0.5
    scores = 3 * torch.tanh(scores / 3)
    back = (49 - torch.arange(50)).clamp(max=7)
    truth = torch.einsum("hk,khd->hd", (scores + bias[:, back]).softmax(-1), v)
    row, length = torch.tensor([0], dtype=torch.int32), torch.tensor([50], dtype=torch.int32)
    y = paged_attention(q, pages, table, row, length, 0.5, softcap=3.0, bias=bias)
    assert torch.allclose(y[0], truth, rtol=2e-6, atol=2e-6)


def test_pages_are_copied_whole_and_hold_even_heads() -> None:
    pages, _, _ = filled([40], 2, 8, torch.bfloat16)
    pages.copy(torch.tensor([0, 1]), torch.tensor([3, 4]))
    assert torch.equal(pages.keys[0], pages.keys[3]) and torch.equal(pages.values[1], pages.values[4])
    with pytest.raises(ValueError, match="even"):
        Pages.empty(1, 2, 7, torch.float32)

"""Dropout: the share, the mean, the gradient, the same draw again, and attention that drops its
pattern."""

from __future__ import annotations

import pytest
import torch

from glassformer.core.nn.dropout import Dropout, dropout, keep_mask
from glassformer.core.nn.engines import ENGINES, AttentionInputs
from glassformer.core.nn.mask import Mask
from glassformer.scale.tensor import HeadShard


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.7])
def test_the_share_and_the_scale(rate):
    torch.manual_seed(0)
    x = torch.ones(401, 1003)
    y = dropout(x, rate)
    assert float((y == 0).float().mean()) == pytest.approx(rate, abs=0.004)
    assert torch.equal(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rate)))


def test_the_mask_is_drawn_where_the_numbers_are():
    assert keep_mask(torch.empty(3, 5, device="meta"), 0.1).device.type == "meta"
    torch.manual_seed(0)
    # the draw of a seed stays
    assert keep_mask(torch.empty(2, 4), 0.5).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]


def test_every_place_is_drawn_by_itself():
    torch.manual_seed(0)
    draws = torch.stack([dropout(torch.ones(8), 0.5) for _ in range(4000)]) == 0
    together = (draws[:, :, None] & draws[:, None, :]).float().mean(0)
    off = together[~torch.eye(8, dtype=torch.bool)]
    assert float((off - 0.25).abs().max()) < 0.03


def test_the_gradient_goes_where_the_value_went():
    x = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (y != 0).double() / 0.6, rtol=1e-12, atol=0)


def test_the_same_seed_drops_the_same():
    module = Dropout(0.3)
    x = torch.randn(9, 11)
    torch.manual_seed(4)
    first = module(x)
    torch.manual_seed(4)
    assert torch.equal(first, module(x))
    assert module.eval()(x) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_blocks_drops_as_the_readable_one_does(dtype):
    """Both draw in the order of blocks, so with one block the two are the same draw."""
    torch.manual_seed(0)
    shape = (2, 3, 16, 8)
    document_ids = torch.tensor([[0] * 9 + [1] * 7, [0] * 16])
    pos = torch.cat((torch.arange(9), torch.arange(7)))[None].repeat(2, 1)
    pos[1] = torch.arange(16)
    mask = Mask(pos, pos, True, document_ids=(document_ids, document_ids))
    results = []
    for engine in ("eager", "cpu_blocks"):
        torch.manual_seed(1)
        q, k, v = (
            torch.randn(shape, generator=torch.Generator().manual_seed(n)).to(dtype)
            for n in range(3)
        )
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        torch.manual_seed(5)
        z = ENGINES[engine].run(AttentionInputs(q, k, v, mask, None, 8**-0.5, dropout=0.4))
        (z.float() * torch.arange(z.numel()).view(z.shape) / z.numel()).sum().backward()
        results.append((z, q.grad, k.grad, v.grad))
    for result, second in zip(*results, strict=True):
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(result, second, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("engine", ["eager", "sdpa", "cpu_blocks", "block_sparse"])
@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("ragged", [False, True])
def test_some_heads_drop_what_they_drop_among_all(engine, kv_heads, ragged):
    """Halves of the heads, as the tensor axis has them: outputs, gradients and what is drawn next
    are those of all."""
    length, draw = 130 if engine == "cpu_blocks" else 40, torch.Generator().manual_seed(1)
    pos = torch.arange(length).expand(2, -1) - torch.tensor([[0], [7 * ragged]])
    mask = Mask(pos.clamp(min=-1), pos.clamp(min=-1), True, contiguous=not ragged)
    totals = {"q": 6, "k": kv_heads, "v": kv_heads}
    values = [
        torch.randn(2, many, length, 8, dtype=torch.float64, generator=draw)
        for many in totals.values()
    ]

    def attend_half(half):
        cut = [x.clone() if half is None else x.chunk(2, 1)[half].clone() for x in values]
        q, k, v = (x.requires_grad_() for x in cut)
        heads = None if half is None else HeadShard(3 * half, 6)
        torch.manual_seed(5)
        out = ENGINES[engine].run(
            AttentionInputs(q, k, v, mask, None, 0.4, dropout=0.3, heads=heads)
        )
        real = (pos >= 0)[:, None, :, None]
        (out * real * torch.arange(length)[:, None]).sum().backward()
        return [out.detach() * real, q.grad, k.grad, v.grad, torch.rand(1, 2)]  # type: ignore[list-item]

    full, first, second = attend_half(None), attend_half(0), attend_half(1)
    for all_heads, *pieces in zip(full[:-1], first[:-1], second[:-1], strict=True):
        assert torch.allclose(torch.cat(pieces, 1), all_heads, rtol=0, atol=1e-9)
    assert torch.equal(first[-1], full[-1]) and torch.equal(second[-1], full[-1])
    assert not torch.equal(first[0], second[0])

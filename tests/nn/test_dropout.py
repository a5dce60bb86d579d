"""Dropout: the share, the mean, the gradient, the same draw again, and attention that drops its
pattern."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from glassformer.core.nn.attention import ENGINES, AttentionInputs
from glassformer.core.nn.dropout import Dropout, dropout, keep_mask
from glassformer.core.nn.mask import Mask
from glassformer.scale.tensor import HeadShard
from seeding import generator_from


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.7])
def test_the_share_and_the_scale(rate):
    torch.manual_seed(0)
    y = dropout(torch.ones(401, 1003), rate)
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
    assert float((together[~torch.eye(8, dtype=torch.bool)] - 0.25).abs().max()) < 0.03


def test_the_gradient_goes_where_the_value_went():
    x = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    assert x.grad is not None
    assert_close(x.grad, (y != 0).double() / 0.6, rtol=1e-12, atol=0)


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
    document_ids = torch.tensor([[0] * 9 + [1] * 7, [0] * 16])
    pos = torch.stack((torch.cat((torch.arange(9), torch.arange(7))), torch.arange(16)))
    mask = Mask(pos, pos, True, document_ids=(document_ids, document_ids))
    values = torch.randn(3, 2, 3, 16, 8).to(dtype)
    results = []
    for engine in ("eager", "cpu_blocks"):
        inputs = [x.clone().requires_grad_() for x in values]
        torch.manual_seed(5)
        z = ENGINES[engine].run(AttentionInputs(*inputs, mask, None, 8**-0.5, dropout=0.4))
        (z.float() * torch.arange(z.numel()).view(z.shape) / z.numel()).sum().backward()
        results.append([z.detach(), *(x.grad for x in inputs)])
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert_close(*results, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("engine", ["eager", "sdpa", "cpu_blocks", "block_sparse"])
@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("ragged", [False, True])
def test_some_heads_drop_what_they_drop_among_all(engine, kv_heads, ragged):
    """Halves of the heads, as the tensor axis has them: outputs, gradients and what is drawn next
    are those of all."""
    length = 130 if engine == "cpu_blocks" else 40
    draw = generator_from(1)
    pos = (torch.arange(length) - torch.tensor([[0], [7 * ragged]])).clamp(min=-1)
    mask = Mask(pos, pos, True, contiguous=not ragged)
    real = (pos >= 0)[:, None, :, None]
    values = [
        torch.randn(2, many, length, 8, dtype=torch.float64, generator=draw)
        for many in (6, kv_heads, kv_heads)
    ]

    def attend(shard):
        inputs = [x if shard is None else x.chunk(2, 1)[shard] for x in values]
        inputs = [x.clone().requires_grad_() for x in inputs]
        heads = None if shard is None else HeadShard(3 * shard, 6)
        torch.manual_seed(5)
        options = {"dropout": 0.3, "heads": heads}
        out = ENGINES[engine].run(AttentionInputs(*inputs, mask, None, 0.4, **options)) * real
        (out * torch.arange(length)[:, None]).sum().backward()
        return [out.detach(), *(x.grad for x in inputs)], torch.rand(1, 2)

    (full, drawn), (first, _), (second, _) = halves = [attend(shard) for shard in (None, 0, 1)]
    for all_heads, *pieces in zip(full, first, second, strict=True):
        assert torch.allclose(torch.cat(pieces, 1), all_heads, rtol=0, atol=1e-9)
    assert all(torch.equal(after, drawn) for _, after in halves)
    assert not torch.equal(first[0], second[0])

"""Pages that are gathered: kept and copied as the kernels' are, read as flash attention takes them,
on any device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.nn.engines import AttentionInputs
from glassformer.fast import varlen
from glassformer.fast.gathered import FlatPages, gathered
from glassformer.fast.kernels import PAGE, Pages, paged_attention
from glassformer.fast.paged import PackedTexts, PagedCache
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.serve.engine import memory
from glassformer.serve.engine.runner import PagedRunner
from glassformer.serve.engine.sequence import Chunk
from pages import sequence_of

PAGED = [
    name
    for name, cfg in tiny.ALL.items()
    if not isinstance(cfg, c.Encoder) and name not in tiny.RECURRENT
]
# PyTorch's grouped product takes no fp32: counts are asked for
MIXTURES = {"mixtral", "deepseek", "noisy", "nanomoe"}
PASSES = [(name, torch.bfloat16) for name in PAGED] + [
    (name, torch.float32) for name in PAGED if name not in MIXTURES
]


def packed(starts: list[int], totals: list[int]) -> PackedTexts:
    """Texts of so many tokens in the row, the first of each at its start; their pages in no
    order."""
    pos = [start + i for start, count in zip(starts, totals, strict=True) for i in range(count)]
    rows = [text for text, count in enumerate(totals) for _ in range(count)]
    spans = [(sum(totals[:text]), sum(totals[: text + 1])) for text in range(len(totals))]
    most = -(-max(start + count for start, count in zip(starts, totals, strict=True)) // PAGE)
    tables = (
        torch.randperm(len(totals) * most, generator=torch.Generator().manual_seed(3))
        .view(-1, most)
        .int()
    )
    return PackedTexts(torch.tensor([pos]), torch.tensor(rows).int(), tables, spans, starts=starts)


@pytest.mark.parametrize("rule", [c.Full(), c.Window(1), c.Window(9), c.Window(40)])
def test_the_keys_of_all_texts_side_by_side_give_what_our_kernels_give(rule: c.MaskRule) -> None:
    """Texts that begin, go on by a chunk, and are at one token a step; what lies before a window is
    not a number."""
    texts, window = (
        packed([0, 50, 33, 77], [7, 20, 1, 1]),
        rule.size if isinstance(rule, c.Window) else None,
    )
    flat, actual = FlatPages.empty(16, 2, 8, torch.float32), Pages.empty(16, 2, 8, torch.float32)
    for piece in (flat.keys, flat.values, actual.keys, actual.values):
        piece.fill_(torch.nan)
    for text, (start, (first, end)) in enumerate(zip(texts.starts, texts.spans, strict=True)):
        places = torch.arange(
            0 if window is None else max(0, start + 1 - window), start + end - first
        )
        slots = texts.tables[text, places // PAGE].long() * PAGE + places % PAGE
        k, v = torch.randn(2, len(places), 2, 8)
        flat.write(k, v, slots)
        actual.write(k, v, slots)
        assert all(map(torch.equal, flat.gather(slots), (k, v)))
    q = torch.randn(29, 4, 8)
    output = texts.tables, texts.rows, texts.lengths, 0.3, window
    expected = torch.cat([_alone(q, actual, *output, text) for text in range(4)])
    result = gathered(texts, texts.tables, rule)
    k, v = (x.transpose(0, 1)[None] for x in flat.gather(result.slots))
    inputs = AttentionInputs(q.transpose(0, 1)[None], k, v, result.mask, None, 0.3, None)
    assert varlen.supports_varlen(inputs)
    actual_result = varlen.varlen_attention(inputs)
    torch.testing.assert_close(actual_result[0].transpose(0, 1), expected, rtol=0, atol=2e-6)
    dense = torch.nn.functional.scaled_dot_product_attention(
        *inputs[:3], attn_mask=result.mask.dense(), scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(actual_result, dense, rtol=0, atol=2e-6)


def _alone(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    rows: Tensor,
    lengths: Tensor,
    scale: float,
    window: Any,
    text: int,
):
    individual = rows == text
    return paged_attention(
        q[individual], pages, tables, rows[individual], lengths[individual], scale, window
    )


def test_a_page_is_copied_whole() -> None:
    pages = FlatPages.empty(3, 2, 8, torch.bfloat16)
    k, v = torch.randn(2, PAGE, 2, 8, dtype=torch.bfloat16)
    pages.write(k, v, torch.arange(PAGE, 2 * PAGE))
    pages.copy(torch.tensor([1]), torch.tensor([2]))
    assert all(map(torch.equal, pages.gather(torch.arange(2 * PAGE, 3 * PAGE)), (k, v)))
    assert pages.nbytes == 2 * 3 * PAGE * 2 * 8 * 2


@pytest.mark.parametrize(("name", "dtype"), PASSES)
def test_nothing_of_a_step_lies_on_another_device(
    name: str, dtype: torch.dtype, asked_nothing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of a device that has no numbers: PyTorch refuses two devices and questions, and checks
    what its own function for packed texts is given."""
    cfg, called = tiny.ALL[name], []
    real, grouped = varlen.kernel()

    def kernel(*args: Any, **more: Any) -> Any:
        called.append(1)
        return real(*args, **more)

    monkeypatch.setattr(varlen, "kernel", lambda: (kernel, grouped))
    texts = [sequence_of([5, 3, 9, 2, 7], "a"), sequence_of([4] * 40, "b")]
    model = build_model(cfg, device="meta", dtype=dtype).eval()
    cache = PagedCache(cfg, 64, 8, 4, dtype, **memory.page_kind(model))
    runner = PagedRunner(model, cache, 4)
    for number, text in enumerate(texts):
        text.pages = [2 * number, 2 * number + 1]
        text.source = (3, 4) if isinstance(cfg, c.EncoderDecoder) else None
    for starts, totals in (((0, 0), (5, 38)), ((4, 38), (1, 1))):
        pairs = zip(texts, starts, totals, strict=True)
        chunks = [
            Chunk(text, start, text.ids[start : start + count], 0, True, [0])
            for text, start, count in pairs
        ]
        with asked_nothing():
            logits = runner.forward(chunks)
        assert logits.shape == (2, tiny.VOCAB) and logits.device.type == "meta"
    runner.copy(0, 5)
    assert bool(called) == (dtype == torch.bfloat16 and name not in tiny.ONE_BY_ONE)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_model_too(bits: int, asked_nothing: Any) -> None:
    model = tiny.model(tiny.DECODERS["llama"])
    quantize_weights(model, QuantizedLayout(bits=bits))
    model = model.to("meta")
    runner = PagedRunner(model, PagedCache(model.config, 64, 8, **memory.page_kind(model)))
    text = sequence_of([5, 3, 9])
    text.pages = [0]
    with asked_nothing():
        assert runner.forward([Chunk(text, 0, text.ids, 0, True, [0])]).device.type == "meta"

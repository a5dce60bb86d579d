"""Blocks in C give the bits of the modules they stand for."""

from __future__ import annotations

import pytest
import torch

import tiny
from glassformer.core.nn import Decoder, EncoderDecoder, Memory, Tape
from glassformer.fast.fused import FusedStack, fuse
from glassformer.fast.kernels.shared_library import has
from glassformer.fast.paged import PackedTexts, PagedCache
from glassformer.fast.prepacked import prepack
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from seeding import generator_from

OTHERS = {
    "mixtral",
    "deepseek",
    "noisy",
    "nanomoe",
    "strided",
    "fixed",
    "prefix",
    "mixed",
    "gru",
    "lstm",
    "gpt_neox",
    "granite",
    "olmo2",
    "smollm3",
    "deepseek_v2",
    "deepseek_v3",
    "llama4",
} | tiny.STATES
"""Experts, latent attention, rules that are no window, recurrent cells, places of norms, multipliers and
positions of a block that the kernels do not know: computed by their modules."""
FUSED = [name for name in tiny.DECODERS if name not in OTHERS]
PAIRS = ["vaswani", "t5", "two vocabularies"]


def packed(spans, first, tables):
    """Texts side by side: text i goes on at place ``first[i]``."""
    pos = torch.cat(
        [
            torch.arange(end - second_start) + start
            for (second_start, end), start in zip(spans, first, strict=True)
        ]
    )
    rows = torch.cat([torch.full((end - start,), text) for text, (start, end) in enumerate(spans)])
    return PackedTexts(pos[None], rows.int(), tables, spans)


def drawn(seed):
    return generator_from(seed)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("name", FUSED + PAIRS)
def test_a_stack_in_c_is_its_modules_bit_for_bit(name, bits):
    """Two texts, their prompts together, then token by token; with a tape on, which takes the
    modules' way.

    Decoders of a pair see two sources of 3 and 40 tokens; then both texts see the second.
    """
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model = tiny.model(name)
    if bits == 16:
        model = model.to(torch.bfloat16)
    elif bits < 16:
        quantize_weights(model, QuantizedLayout(bits=bits))
    assert isinstance(model, Decoder | EncoderDecoder)
    view = fuse(prepack(model, exact=True).model)
    assert isinstance(view.decoder, FusedStack)
    dtype = next(model.parameters()).dtype
    results = []
    for tape in (None, Tape()):
        cache = PagedCache(model.config, 64, 8, 3, dtype)
        fields = {}
        sources = None
        if name in PAIRS:
            sources = (
                torch.tensor([[2, 2], [0, 1]], dtype=torch.int32),
                torch.tensor([3, 40], dtype=torch.int32),
            )
            for seed, (_, across) in enumerate(cache.pages):
                assert across is not None
                k, v = torch.randn(
                    2,
                    96,
                    *across.pages.keys.shape[1:2],
                    across.pages.head_dim,
                    generator=drawn(seed),
                )
                across.pages.write(k, v, torch.arange(96))
            fields = {"memory": Memory(torch.empty(1, 0, model.config.dim), torch.empty(1, 0))}
        tables = torch.tensor([[5, 2], [3, 7]], dtype=torch.int32)
        out = []
        steps = [([(0, 9), (9, 14)], [0, 0])] + [
            ([(0, 1), (1, 2)], [9 + step, 5 + step]) for step in range(3)
        ]
        tokens = torch.randint(tiny.VOCAB, (1, 40), generator=drawn(3))
        for spans, first in steps:
            cache.texts = packed(spans, first, tables)
            cache.texts.sources = sources
            if first[0] > 10:
                cache.texts.source_of = torch.ones(2, dtype=torch.int32)
            with torch.no_grad():
                answer = view(
                    tokens[:, : spans[-1][1]], pos=cache.texts.pos, cache=cache, tape=tape, **fields
                )
            out.append(answer.logits)
            tokens = tokens[:, spans[-1][1] :]
        results.append(out)
    for result, reference in zip(*results, strict=True):
        assert torch.equal(result, reference), (result.float() - reference.float()).abs().max()
    assert torch.cat(results[0], 1).isfinite().all()

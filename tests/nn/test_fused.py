"""Blocks in C give the bits of the modules they stand for."""

from __future__ import annotations

import pytest
import torch

import tiny
from glassformer.nn import Decoder, Tape
from glassformer.nn.fused import FusedStack, fuse
from glassformer.nn.kernels.library import has
from glassformer.nn.paged import PackedTexts, PagedCache
from glassformer.nn.prepacked import prepack
from glassformer.nn.quantized import Layout, quantize_weights

OTHERS = {"mixtral", "deepseek", "noisy", "nanomoe", "strided", "fixed", "prefix", "mixed", "gru", "lstm"}
"""Experts, rules that are no window, recurrent cells: computed by their modules."""
FUSED = [name for name in tiny.DECODERS if name not in OTHERS]


def packed(spans: list[tuple[int, int]], first: list[int], tables: torch.Tensor) -> PackedTexts:
    """Texts side by side: text i goes on at place ``first[i]``."""
    pos = torch.cat([torch.arange(end - begin) + start for (begin, end), start in zip(spans, first, strict=True)])
    rows = torch.cat([torch.full((end - begin,), text) for text, (begin, end) in enumerate(spans)])
    return PackedTexts(pos[None], rows.int(), tables, spans)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("name", FUSED)
def test_a_stack_in_c_is_its_modules_bit_for_bit(name: str, bits: int) -> None:
    """Two texts, their prompts together, then token by token; with a tape on, which takes the modules' way."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model = tiny.model(tiny.DECODERS[name])
    if bits == 16:
        model = model.to(torch.bfloat16)
    elif bits < 16:
        quantize_weights(model, Layout(bits=bits))
    assert isinstance(model, Decoder)
    view = fuse(prepack(model, exact=True).model)
    assert isinstance(view.decoder, FusedStack)
    dtype = next(model.parameters()).dtype
    found = []
    for tape in (None, Tape()):
        cache = PagedCache(model.config, 64, 8, 0, dtype)
        tables, out = torch.tensor([[5, 2], [3, 7]], dtype=torch.int32), []
        steps = [([(0, 9), (9, 14)], [0, 0])] + [([(0, 1), (1, 2)], [9 + step, 5 + step]) for step in range(3)]
        tokens = torch.randint(tiny.VOCAB, (1, 40), generator=torch.Generator().manual_seed(3))
        for spans, first in steps:
            cache.texts = packed(spans, first, tables)
            with torch.no_grad():
                told = view(tokens[:, : spans[-1][1]], pos=cache.texts.pos, cache=cache, tape=tape)
            out.append(told.logits)
            tokens = tokens[:, spans[-1][1] :]
        found.append(out)
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs), (ours.float() - theirs.float()).abs().max()
    assert torch.cat(found[0], 1).isfinite().all()

"""Texts in one packed row over pages are read as each alone by the engine that is written out."""

from __future__ import annotations

import random

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.nn.paged import PackedTexts, PagedCache

STACKS = [name for name, cfg in tiny.DECODERS.items() if isinstance(cfg.decoder, c.Stack)]


@pytest.mark.parametrize("name", STACKS)
def test_texts_in_pages_are_read_as_alone(name: str) -> None:
    """In chunks of different lengths, over pages in any order."""
    model, lot = tiny.model(tiny.DECODERS[name]), random.Random(2)
    texts = [torch.randint(0, tiny.VOCAB, (length,)).tolist() for length in (50, 9, 33)]
    pages = lot.sample(range(8), 6)
    tables = torch.tensor([pages[:2], [pages[2], 0], pages[3:5]], dtype=torch.int32)
    cache, done = PagedCache(model.config, 64, 8), [0, 0, 0]
    lag = model.config.embed.previous_token_embeddings
    hidden: list[list[torch.Tensor]] = [[], [], []]
    with torch.no_grad():
        while any(begun < len(text) for begun, text in zip(done, texts, strict=True)):
            ends = [
                min(len(text), begun + lot.randint(4, 20))
                for begun, text in zip(done, texts, strict=True)
            ]
            counts = [end - begun for begun, end in zip(done, ends, strict=True)]
            some = [text for text in range(3) if counts[text]]
            tokens = [token for text in some for token in texts[text][done[text] : ends[text]]]
            pos = torch.tensor(
                [[place for text in some for place in range(done[text], ends[text])]]
            )
            rows = torch.tensor(
                [row for row, text in enumerate(some) for _ in range(counts[text])],
                dtype=torch.int32,
            )
            firsts = [sum(counts[other] for other in some[:row]) for row in range(len(some))]
            spans = [
                (first, first + counts[text]) for first, text in zip(firsts, some, strict=True)
            ]
            previous = None
            if lag:
                padded = [[-1] * lag + text for text in texts]
                seen = [padded[t][p : p + lag][::-1] for t in some for p in range(done[t], ends[t])]
                previous = torch.tensor([seen])
            cache.texts = PackedTexts(pos, rows, tables[some], spans, None, previous)
            out = model(torch.tensor([tokens]), pos=pos, cache=cache, logits="none").hidden[0]
            for text, (first, end) in zip(some, spans, strict=True):
                hidden[text].append(out[first:end])
            done = ends
        model.engine = "eager"
        for text, found in zip(texts, hidden, strict=True):
            alone = model(torch.tensor([text]), logits="none").hidden[0]
            assert (torch.cat(found) - alone).abs().max() < 1e-4


def test_a_page_has_the_bytes_that_are_said() -> None:
    cfg = tiny.DECODERS["qwen3"]
    own, near, across = PagedCache.page_bytes(cfg, torch.float32)
    cache = PagedCache(cfg, 64, 5)
    assert sum(kv.pages.nbytes for kv, _ in cache.pages) == (own + near) * 5 and across == 0

"""Texts in one packed row over pages are read as each alone by the engine that is written out."""

from __future__ import annotations

import random

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.fast.paged import PackedTexts, PagedCache

STACKS = [name for name, cfg in tiny.DECODERS.items() if isinstance(cfg.decoder, c.Stack)]


@pytest.mark.parametrize("name", STACKS)
def test_texts_in_pages_are_read_as_alone(name):
    """In chunks of different lengths, over pages in any order."""
    model, lot = tiny.model(tiny.DECODERS[name]), random.Random(2)
    texts = [torch.randint(0, tiny.VOCAB, (length,)).tolist() for length in (50, 9, 33)]
    pages = lot.sample(range(8), 6)
    tables = torch.tensor([pages[:2], [pages[2], 0], pages[3:5]], dtype=torch.int32)
    cache, done = PagedCache(model.config, 64, 8), [0, 0, 0]
    lag = model.config.embed.previous_token_embeddings
    hidden: list[list[torch.Tensor]] = [[], [], []]
    with torch.no_grad():
        while any(started < len(text) for started, text in zip(done, texts, strict=True)):
            bounds = [
                min(len(text), started + lot.randint(4, 20))
                for started, text in zip(done, texts, strict=True)
            ]
            totals = [end - started for started, end in zip(done, bounds, strict=True)]
            group = [text for text in range(3) if totals[text]]
            tokens = [token for text in group for token in texts[text][done[text] : bounds[text]]]
            pos = torch.tensor(
                [[place for text in group for place in range(done[text], bounds[text])]]
            )
            rows = torch.tensor(
                [row for row, text in enumerate(group) for _ in range(totals[text])],
                dtype=torch.int32,
            )
            firsts = [sum(totals[second] for second in group[:row]) for row in range(len(group))]
            spans = [
                (first, first + totals[text]) for first, text in zip(firsts, group, strict=True)
            ]
            previous = None
            if lag:
                padded = [[-1] * lag + text for text in texts]
                observed = [
                    padded[t][p : p + lag][::-1] for t in group for p in range(done[t], bounds[t])
                ]
                previous = torch.tensor([observed])
            cache.texts = PackedTexts(pos, rows, tables[group], spans, None, previous)
            out = model(torch.tensor([tokens]), pos=pos, cache=cache, logits="none").hidden[0]
            for text, (first, end) in zip(group, spans, strict=True):
                hidden[text].append(out[first:end])
            done = bounds
        model.engine = "eager"
        for text, result in zip(texts, hidden, strict=True):
            alone = model(torch.tensor([text]), logits="none").hidden[0]
            assert (torch.cat(result) - alone).abs().max() < 1e-4


def test_a_page_has_the_bytes_that_are_said():
    cfg = tiny.DECODERS["qwen3"]
    individual, near, across = PagedCache.page_bytes(cfg, torch.float32)
    cache = PagedCache(cfg, 64, 5)
    assert sum(kv.pages.nbytes for kv, _ in cache.pages) == (individual + near) * 5 and across == 0

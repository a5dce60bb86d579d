"""Texts in one packed row over pages are read as each alone by the engine that is written out."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch.nn import functional as F

import tiny
from glassformer.fast.paged import PackedTexts, PagedCache

STACKS = [name for name in tiny.DECODERS if name not in tiny.RECURRENT | tiny.STATES]


@pytest.mark.parametrize("name", STACKS)
@torch.no_grad()
def test_texts_in_pages_are_read_as_alone(name):
    """In chunks of different lengths, over pages in any order."""
    model = tiny.model(name)
    lot = random.Random(2)
    texts = [torch.randint(0, tiny.VOCAB, (length,)) for length in (50, 9, 33)]
    pages = lot.sample(range(8), 6)
    tables = torch.tensor([pages[:2], [pages[2], 0], pages[3:5]], dtype=torch.int32)
    cache = PagedCache(model.config, 64, 8)
    done = [0, 0, 0]
    lag = model.config.embed.previous_token_embeddings
    hidden = [[], [], []]
    while any(len(text) > start for start, text in zip(done, texts, strict=True)):
        bounds = [
            min(len(text), start + lot.randint(4, 20))
            for start, text in zip(done, texts, strict=True)
        ]
        group = [number for number in range(3) if bounds[number] > done[number]]
        places = [torch.arange(done[number], bounds[number]) for number in group]
        sizes = [len(row) for row in places]
        offsets = list(itertools.accumulate(sizes))
        pos = torch.cat(places)[None]
        rows = torch.arange(len(group)).repeat_interleave(torch.tensor(sizes)).int()
        pieces = [(texts[n], row) for n, row in zip(group, places, strict=True)]
        previous = None
        if lag:  # the last tokens before each, -1 before the first
            before = [
                F.pad(text, (lag, 0), value=-1).unfold(0, lag, 1)[row] for text, row in pieces
            ]
            previous = torch.cat(before).flip(-1)[None]
        spans = list(zip([0, *offsets], offsets, strict=False))
        cache.texts = PackedTexts(pos, rows, tables[group], spans, None, previous)
        ids = torch.cat([text[row] for text, row in pieces])[None]
        out = model(ids, pos=pos, cache=cache, logits="none").hidden[0]
        for number, piece in zip(group, out.split(sizes), strict=True):
            hidden[number].append(piece)
        done = bounds
    model.engine = "eager"
    for text, result in zip(texts, hidden, strict=True):
        alone = model(text[None], logits="none").hidden[0]
        assert (torch.cat(result) - alone).abs().max() < 1e-4


def test_a_page_has_the_bytes_that_are_said():
    cfg = tiny.DECODERS["qwen3"]
    individual, near, across = PagedCache.page_bytes(cfg, torch.float32)
    assert sum(kv.pages.nbytes for kv, _ in PagedCache(cfg, 64, 5).pages) == (individual + near) * 5
    assert across == 0

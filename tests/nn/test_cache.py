"""A cache says what reading anew says: whatever came in which chunk, with padding, gaps, trims,
forks; in bf16 too."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.nn import KV, Cache
from tiny import DECODERS, tokens


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def near(result, expected, tolerance=2e-5):
    assert_close(result, expected, rtol=0, atol=tolerance)


class Walk:
    """Three rows read at random into a cache, and what a reader without one would hold of each."""

    def __init__(self, model, seed):
        self.model, self.cache, self.draw = model, Cache(model.config), random.Random(seed)
        # (token, position) of each row
        self.rows = [[] for _ in range(3)]

    def last_positions(self):
        return [row[-1][1] if row else -1 for row in self.rows]

    def forward(self, stored, explicit_pos):
        """One chunk: each row's (token, position), -1 where there is nothing; positions are told or
        left out."""
        ids, pos = torch.tensor(stored).unbind(-1)
        logits = self.model(ids, pos=pos if explicit_pos else None, cache=self.cache).logits
        for row, chunk, result, real in zip(self.rows, stored, logits, pos >= 0, strict=True):
            row += [pair for pair in chunk if pair[1] >= 0]
            if count := int(real.sum()):
                full, places = torch.tensor(row).T[:, None]
                near(result[real], self.model(full, pos=places).logits[0, -count:])

    def chunk(self, least=0):
        """Reads as many tokens as come to each row, padding behind them, at positions that may skip
        some."""
        totals = [self.draw.randint(least, max(least, 5)) for _ in self.rows]
        totals[self.draw.randrange(3)] += 1
        # a batch of prompts is padded before them
        pad_left = not self.cache.length and self.draw.random() < 0.5
        stored = []
        for count, end in zip(totals, self.last_positions(), strict=True):
            start = end + 1 + (self.draw.choice((0, 0, 3)) if end >= 0 else 0)
            row = [(self.draw.randrange(tiny.VOCAB), start + step) for step in range(count)]
            padding = [(0, -1)] * (max(totals) - count)
            stored.append(padding + row if pad_left else row + padding)
        self.forward(stored, explicit_pos=True)

    def onward(self):
        """The same number of tokens in each row, positions left to the cache."""
        count = self.draw.choice((1, 1, 4))
        stored = [
            [(self.draw.randrange(tiny.VOCAB), end + 1 + step) for step in range(count)]
            for end in self.last_positions()
        ]
        self.forward(stored, explicit_pos=False)

    def mix(self):
        order = [self.draw.randrange(3) for _ in range(3)]
        self.cache.select(torch.tensor(order))
        self.rows = [list(self.rows[number]) for number in order]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", DECODERS)
def test_any_way_of_reading_is_reading_alone(name, seed):
    walk = Walk(tiny.model(name), seed)
    if seed == 0 and walk.cache.prefix_length <= 4:
        walk.forward(
            [[(number, place) for place in range(4)] for number in range(3)], explicit_pos=False
        )
    else:
        walk.chunk(least=walk.cache.prefix_length)
    for _ in range(14):
        if max(walk.last_positions()) < tiny.CONTEXT - 10:
            walk.draw.choice((walk.chunk, walk.chunk, walk.onward, walk.onward, walk.mix))()


def test_a_ring_of_gaps_keeps_what_its_positions_say():
    """Positions may begin anywhere: which slots are used is not told by how many columns came."""
    walk = Walk(tiny.model("starcoder2"), 0)
    walk.forward([[(7, 11), (8, 12)], [(9, 5), (3, -1)], [(4, 19), (5, 20)]], explicit_pos=True)
    walk.forward([[(6, 13), (2, 14)], [(3, 6), (4, 7)], [(8, 21), (0, -1)]], explicit_pos=True)
    walk.onward()
    walk.forward([[(7, 30)], [(0, -1)], [(4, 27)]], explicit_pos=True)
    walk.onward()


@pytest.mark.parametrize("name", ["llama", "starcoder2", "gru", "glass"])
@pytest.mark.parametrize("order", [[0, 3, 2], [1, 2], [3], [0, 1, 2], [2, 2, 3, 3]], ids=str)
def test_a_batch_gets_smaller_within_its_own_memory(name, order):
    """Rows that stay in order, or come from further down, are moved up; nothing else is copied."""
    model = tiny.model(name)
    cache = Cache(model.config)
    prompts = tokens(4, 12)
    new = tokens(len(order), 70, seed=2)[:, :3]
    lengths = torch.tensor([[12], [9], [11], [5]])
    pos = torch.arange(12)[None]
    model(prompts, pos=pos.where(pos < lengths, -1), cache=cache)
    layers = [kv for kv, _ in cache.layers if isinstance(kv, KV)]
    places = [x.data_ptr() for kv in layers for x in (kv.k, kv.v)]
    cache.select(torch.tensor(order))
    assert [x.data_ptr() for kv in layers for x in (kv.k, kv.v)] == places
    for _ in range(2):
        logits = model(new, cache=cache).logits
    for old, more, result in zip(order, new, logits, strict=True):
        alone = torch.cat((prompts[old, : lengths[old]], more, more))[None]
        near(result, model(alone).logits[0, -3:])


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("engine", ["sdpa", "eager"])
def test_a_state_is_its_documents_own(name, engine):
    """A document that begins forgets what its row read before; of several in a row, the last one
    goes on."""
    model = tiny.model(name)
    model.engine, cache, (first, middle, last) = (
        engine,
        Cache(model.config),
        tokens(3, 12).split([4, 6, 2], 1),
    )
    model(first, cache=cache)
    pos = torch.tensor([[4, 5, 6, 7, 0, 1], [0, 1, 2, 0, 1, -1], [-1, 0, 1, 2, 3, 4]])
    logits = model(middle, pos=pos, cache=cache).logits
    end = model(last, pos=torch.tensor([[2, 3], [2, 3], [5, 6]]), cache=cache).logits
    for row, document in ((0, slice(4, 6)), (1, slice(0, 3)), (1, slice(3, 5)), (2, slice(1, 6))):
        near(logits[row, document], model(middle[row : row + 1, document]).logits[0], 1e-5)
        if document != slice(0, 3):
            joined = torch.cat((middle[row, document], last[row]))[None]
            near(end[row], model(joined).logits[0, -2:], 1e-5)


# ------------------------------------------------------------------------------------- bf16


def unusual(config):
    """The same with another scale of the scores than 1 / sqrt(head_dim)."""
    if not isinstance(config.decoder, c.Stack):
        return config
    pattern = tuple(
        replace(item, attention=replace(item.attention, scale=0.7))
        if isinstance(item.attention, c.Attention)
        else item
        for item in config.decoder.pattern
    )
    return replace(config, decoder=replace(config.decoder, pattern=pattern))


def error(result, exact):
    """The median over tokens of how far logits are off (rms): an expert that is chosen otherwise is
    one token's."""
    return float((result.double() - exact).square().mean(-1).sqrt().median())


@pytest.mark.parametrize("name", DECODERS)
def test_in_bf16_a_cache_errs_as_the_readable_engine_does(name):
    """Twice as much at most: each way rounds the same values, at other places. One path lost is
    tenfold."""
    model = tiny.model(unusual(DECODERS[name])).bfloat16()
    exact = copy.deepcopy(model).double()
    law = copy.deepcopy(model)
    ids = tokens()
    exact.engine = law.engine = "eager"
    true = exact(ids).logits
    pos = torch.arange(20)[None]
    bound = 2 * error(law(ids).logits, true)
    cache = Cache(model.config)
    cached = [model(piece, cache=cache).logits for piece in ids.split([7, 1, 1, 6, 1, 4], 1)]
    for logits in (torch.cat(cached, 1), model(ids).logits):
        assert error(logits, true) <= bound
    # as prompts of unlike lengths are padded
    cache = Cache(model.config)
    starts = [0, 2, 5]
    sizes = [9, 1, 1, 6, 3]
    pos = (pos - torch.tensor(starts)[:, None]).clamp(min=-1)
    pieces = zip(ids.split(sizes, 1), pos.split(sizes, 1), strict=True)
    padded = torch.cat(
        [model(piece, pos=places, cache=cache).logits for piece, places in pieces], 1
    )
    alone = [exact(row[None, start:]).logits[0] for row, start in zip(ids, starts, strict=True)]
    result = [row[start:] for row, start in zip(padded, starts, strict=True)]
    assert error(torch.cat(result), torch.cat(alone)) <= bound


@pytest.mark.parametrize("size", [2**31, tiny.CONTEXT + 1])
def test_a_window_longer_than_the_context_takes_no_memory_before_tokens_come(size):
    cfg = DECODERS["starcoder2"]
    attention = replace(cfg.decoder.blocks[0].attention, mask=c.Window(size))
    stack = replace(cfg.decoder, pattern=(replace(cfg.decoder.blocks[0], attention=attention),))
    model = tiny.model(replace(cfg, decoder=stack))
    cache = Cache(model.config)
    ids = tokens(1, 12)
    cached = torch.cat([model(chunk, cache=cache).logits for chunk in ids.split(4, 1)], 1)
    near(cached, model(ids).logits)
    assert all(kv.k.shape[2] <= 64 for kv, _ in cache.layers)
    assert not cache.evicts

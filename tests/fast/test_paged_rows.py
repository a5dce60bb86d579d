"""Rows that go on in pages say what they say in a cache."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer.core.generation import beam
from glassformer.core.generation.session import Session
from glassformer.core.nn import EncoderDecoder
from glassformer.fast.kernels import PAGE, Pages
from glassformer.fast.kernels.shared_library import has

FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "alibi", "starcoder2", "phi2"]


pytestmark = pytest.mark.skipif(
    not has("stack"), reason="needs the compiled kernels: python hatch_build.py"
)


def walk(name, context, prefill, steps, orders, paged):
    """Logits of every step in pages or in a cache; ``orders`` says at which step rows change."""
    session = Session(tiny.model(replace(tiny.ALL[name], context=context)))
    logits = [session.prefill(*prefill)]
    if paged:
        session.prepare(1 << 10, steps=steps + 6)
        assert session.paged is not None
    for step in range(steps):
        if step in orders:
            session.select(orders[step])
        rows = len(orders[step]) if step in orders else len(logits[-1])
        places = [(3 + 5 * step + 7 * row) % 50 for row in range(rows)]
        logits.append(session.decode(torch.tensor(places)))
    return logits


STARTS = [[5, 3, 9, 2, 7, 1, 4, 8, 6, 2, 3], [1, 2], [4, 4, 6, 1, 9, 3]]


LONG = [[(7 * place) % 50 for place in range(70)], [1, 2], [4] * 33]


ORDERS = {
    0: [0, 0, 3, 2, 5, 5],
    5: [1, 0, 2, 2, 4, 5],
    6: [0, 0, 4, 4],
    28: [1, 0, 3, 3],
    30: [1, 1, 2, 3],
}


WALKS = [
    # prompts of three lengths, windows among the masks; a row is dropped and two change places
    *((name, 64, (STARTS, None, 1), 8, {4: [2, 0]}) for name in FAMILIES),
    # windows alone, and both kinds, in turns; several ends of pages
    *((name, 256, (LONG, None, 1), 105, {50: [2, 0]}) for name in ("starcoder2", "gemma2")),
    ("llama", 64, (STARTS, None, 2), 34, ORDERS),
    *((name, 64, ([[0]] * 3, STARTS, 2), 34, ORDERS) for name in ("vaswani", "t5")),
]


@pytest.mark.parametrize("name, context, prefill, steps, orders", WALKS)
def test_rows_go_on_in_pages_as_in_the_cache_and_take_turns(name, context, prefill, steps, orders):
    pages, cache = (walk(name, context, prefill, steps, orders, paged) for paged in (True, False))
    assert_close(pages, cache, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["starcoder2", "gemma2"])
def test_layers_with_windows_fill_the_same_pages_in_turns(name):
    session = Session(tiny.model(replace(tiny.DECODERS[name], context=256)))
    session.prefill(LONG, None, 1)
    session.prepare(1 << 10, steps=110)
    for layer, _ in session.paged.cache.pages:
        assert len(layer.pages.keys) == 3 * (6 if layer.lookback is None else 2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["llama", "vaswani"])
def test_any_order_of_rows_is_that_of_a_cache_that_copies_all(name, seed, monkeypatch):
    """Rows of every length through several page borders, in as many pages as they fill at most;
    none is wasted."""
    copied = list[int]()
    copy = Pages.copy

    def counted(self, source, target):
        copied.append(len(source))
        targets = set(target.tolist())
        assert not set(source.tolist()) & targets
        assert len(targets) == len(target)
        copy(self, source, target)

    monkeypatch.setattr(Pages, "copy", counted)
    rng = random.Random(seed)
    model = tiny.model(replace(tiny.ALL[name], context=192))
    pair = isinstance(model, EncoderDecoder)
    widest = rng.randint(2, 8)
    lengths = [rng.choice((1, 31, 32, 33, 64, rng.randint(1, 70))) for _ in range(widest)]
    prompts = [[rng.randrange(50) for _ in range(length)] for length in lengths]
    sessions = paged, plain = Session(model), Session(model)
    for session in sessions:
        session.prefill(*([[0]] * widest, prompts) if pair else (prompts, None), 1)
    paged.prepare(1 << 10, steps=100)
    assert paged.paged is not None
    at = [1] * widest if pair else lengths
    for _ in range(100):
        if rng.random() < 0.6:
            rows = [rng.randrange(len(at)) for _ in range(rng.randint(1, widest))]
            at = [at[row] for row in rows]
            copied.clear()
            for session in sessions:
                session.select(rows)
            again = [place for place, row in enumerate(rows) if row in rows[:place]]
            doubled = sum(at[place] % PAGE != 0 for place in again)
            assert not copied or set(copied) == {doubled}
        tokens = torch.tensor([rng.randrange(50) for _ in at])
        at = [place + 1 for place in at]
        assert_close(paged.decode(tokens), plain.decode(tokens), atol=2e-5, rtol=1e-4)


def test_beams_in_c_find_the_same_alone_and_in_a_batch():
    model = tiny.model("vaswani")
    sources = [[5, 3, 9, 2], [1, 2, 8], [4] * 11]
    options = {"beams": 3, "best": 3, "max_new": 20, "eos": (), "start": 0}
    together, alone = (
        [
            [item.tokens for item in group]
            for batch in batches
            for group in beam(model, None, batch, **options)
        ]
        for batches in ([sources], [[source] for source in sources])
    )
    assert together == alone


def test_a_model_that_does_not_fit_goes_on_in_its_cache():
    for name in ("mixtral", "gru", "nanomoe"):
        session = Session(tiny.model(name))
        session.prefill([[1, 2, 3]], None, 1)
        session.prepare(1 << 10, steps=20)
        assert session.paged is None
        assert session.decode(torch.tensor([4])).isfinite().all()

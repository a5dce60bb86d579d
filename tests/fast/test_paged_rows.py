"""Rows that go on in pages say what they say in a cache."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer.core.generation import beam
from glassformer.core.generation.session import Session
from glassformer.core.nn import EncoderDecoder
from glassformer.fast.kernels import PAGE, Pages
from glassformer.fast.kernels.library import has

FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "alibi", "starcoder2", "phi2"]


@pytest.mark.parametrize("name", FAMILIES)
def test_ragged_rows_go_on_in_pages_as_in_the_cache(name):
    """Prompts of three lengths, windows among the masks; one row is dropped on the way and two
    change places."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model = tiny.model(replace(tiny.DECODERS[name], context=64))
    starts = [[5, 3, 9, 2, 7, 1, 4, 8, 6, 2, 3], [1, 2], [4, 4, 6, 1, 9, 3]]
    results = []
    for paged in (True, False):
        session = Session(model)
        logits = [session.prefill(starts, None, 1)]
        if paged:
            session.prepare(steps=20)
            assert session.paged is not None
        for step in range(8):
            if step == 4:
                session.select([2, 0])
            tokens = torch.tensor([3 + step, 17, 8][: len(logits[-1]) if step < 4 else 2])
            logits.append(session.decode(tokens))
        results.append(logits)
    for result, reference in zip(*results, strict=True):
        torch.testing.assert_close(result, reference, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["starcoder2", "gemma2"])
def test_layers_with_windows_fill_the_same_pages_in_turns(name):
    """Covers windows alone, and both kinds; several ends of pages, and a row that leaves."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model = tiny.model(replace(tiny.DECODERS[name], context=256))
    starts = [[(7 * place) % 50 for place in range(70)], [1, 2], [4] * 33]
    results = []
    for paged in (True, False):
        session = Session(model)
        logits = [session.prefill(starts, None, 1)]
        if paged:
            session.prepare(steps=110)
            assert session.paged is not None
            sizes = {
                individual.lookback: len(individual.pages.keys)
                for individual, _ in session.paged.cache.pages
            }
            assert sizes == {
                individual.lookback: 3 * (6 if individual.lookback is None else 2)
                for individual, _ in session.paged.cache.pages
            }
        for step in range(105):
            if step == 50:
                session.select([2, 0])
            tokens = torch.tensor([3 + step % 40, 17, 8][: 3 if step < 50 else 2])
            logits.append(session.decode(tokens))
        results.append(logits)
    for result, reference in zip(*results, strict=True):
        torch.testing.assert_close(result, reference, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "vaswani", "t5"])
def test_beams_share_pages_and_part_where_they_write(name):
    """Three prompts (of a pair: three sources), two rows of each; over a page's end and with a
    prompt that is done."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model = tiny.model(replace(tiny.ALL[name], context=64))
    pair = isinstance(model, EncoderDecoder)
    prompts = [[5, 3, 9, 2, 7, 1, 4, 8], [1, 2], [4, 4, 6, 1, 9, 3]]
    orders = {
        0: [0, 0, 3, 2, 5, 5],
        5: [1, 0, 2, 2, 4, 5],
        6: [0, 0, 4, 4],
        28: [1, 0, 3, 3],
        30: [1, 1, 2, 3],
    }
    results = []
    for paged in (True, False):
        session = Session(model)
        starts = [[0]] * 3 if pair else prompts
        logits = [session.prefill(starts, prompts if pair else None, 2)]
        if paged:
            session.prepare(steps=40)
            assert session.paged is not None
        for step in range(34):
            if step in orders:
                session.select(orders[step])
            rows = 6 if step < 6 else 4
            logits.append(
                session.decode(torch.tensor([(3 + 5 * step + 7 * row) % 50 for row in range(rows)]))
            )
        results.append(logits)
    for result, reference in zip(*results, strict=True):
        torch.testing.assert_close(result, reference, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["llama", "vaswani"])
def test_any_order_of_rows_is_that_of_a_cache_that_copies_all(name, seed, monkeypatch):
    """Rows of every length through several page borders, in as many pages as they fill at most;
    none is wasted."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    copied, copy = list[int](), Pages.copy

    def counted(self, source, target):
        copied.append(len(source))
        assert not set(source.tolist()) & set(target.tolist()) and len(set(target.tolist())) == len(
            target
        )
        copy(self, source, target)

    monkeypatch.setattr(Pages, "copy", counted)
    rng = random.Random(seed)
    model = tiny.model(replace(tiny.ALL[name], context=192))
    pair = isinstance(model, EncoderDecoder)
    widest = rng.randint(2, 8)
    lengths = [rng.choice((1, 31, 32, 33, 64, rng.randint(1, 70))) for _ in range(widest)]
    prompts = [[rng.randrange(50) for _ in range(length)] for length in lengths]
    output = ([[0]] * widest, prompts) if pair else (prompts, None)
    paged, plain = Session(model), Session(model)
    for session in (paged, plain):
        session.prefill(*output, 1)
    paged.prepare(steps=100)
    assert paged.paged is not None
    at = [1] * widest if pair else lengths
    for _ in range(100):
        if rng.random() < 0.6:
            rows = [rng.randrange(len(at)) for _ in range(rng.randint(1, widest))]
            at = [at[row] for row in rows]
            copied.clear()
            for session in (paged, plain):
                session.select(rows)
            doubled = (
                len(rows) - len(set(rows)) - sum(at[place] % PAGE == 0 for place in doubles(rows))
            )
            assert not copied or set(copied) == {doubled}
        tokens = torch.tensor([rng.randrange(50) for _ in at])
        at = [place + 1 for place in at]
        torch.testing.assert_close(paged.decode(tokens), plain.decode(tokens), atol=2e-5, rtol=1e-4)


def doubles(rows: list[int]) -> list[int]:
    """The places of rows that came before."""
    return [place for place, row in enumerate(rows) if row in rows[:place]]


def test_beams_in_c_find_the_same_alone_and_in_a_batch():
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model, sources = tiny.model(tiny.ALL["vaswani"]), [[5, 3, 9, 2], [1, 2, 8], [4] * 11]
    options = {"beams": 3, "best": 3, "max_new": 20, "eos": (), "start": 0}
    together = beam(model, None, sources, **options)  # type: ignore[arg-type]
    alone = [beam(model, None, [source], **options)[0] for source in sources]  # type: ignore[arg-type]
    assert [[item.tokens for item in group] for group in together] == [
        [item.tokens for item in group] for group in alone
    ]


def test_a_model_that_does_not_fit_goes_on_in_its_cache():
    for name in ("mixtral", "gru", "nanomoe"):
        session = Session(tiny.model(tiny.DECODERS[name]))
        session.prefill([[1, 2, 3]], None, 1)
        session.prepare(steps=20)
        assert session.paged is None and session.decode(torch.tensor([4])).isfinite().all()

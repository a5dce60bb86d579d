"""Layers with windows hold the pages that a token to come still sees, and no answer changes by
it."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import tiny
from glassformer.core.errors import UserError
from glassformer.core.generation import Sampling, beam
from glassformer.serve.engine import Engine, Request
from glassformer.serve.engine.page_memory import fit_pages, page_needs, plan_memory
from glassformer.serve.engine.runner import PagedRunner
from glassformer.serve.engine.scheduler import PagePool, Windows
from glassformer.sight import look
from glassformer.sight.edits import parse
from pages import check_pages, check_windows

from .test_laws import check_equal

CONTEXT = 400
# all layers, some of them, windows by a rule of their own
NAMES = ["starcoder2", "gemma2", "mixed"]
STEP = 7  # tokens a step; with a window of 6 to 9 tokens that is two pages of thirteen


def model(name):
    return tiny.model(dataclasses.replace(tiny.DECODERS[name], context=CONTEXT))


def requests(count=6):
    """Long texts that begin alike, end in the middle of a page or not, are guessed, repeated, drawn
    several times."""
    lot = random.Random(1)
    results = []
    common = lot.choices(range(tiny.VOCAB), k=200)
    for number in range(count):
        individual = lot.choices(range(tiny.VOCAB), k=lot.randint(1, 40))
        repeated = [4, 1, 4, 2] * lot.choice([0, 8])
        options = {
            "sampling": lot.choice([Sampling(0), Sampling(0.8)]),
            "seed": number,
            "max_new": lot.randint(1, 40),
            "prompt_logprobs": lot.choice([None, None, 0]),
            "n": lot.choice([1, 1, 3]),
            "client": lot.choice("ab"),
        }
        ids = [*common[: lot.choice([0, 64, 150, 192])], *individual, *repeated]
        results.append(Request(ids, **options))
    return results


def answers(engine, requests):
    handles = [engine.submit(request) for request in requests]
    results = [handle.result() for handle in handles]
    assert engine.memory_plan.pool.in_use == 0 == engine.stats().pages_used
    check_pages(engine.memory_plan.pool)
    if engine.memory_plan.windows is not None:
        check_windows(engine.memory_plan.windows)
    return results


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_as_with_all_pages(name):
    """Alone and with others, in small steps, with few pages, after prompts that are found again,
    guessed."""
    served = model(name)
    expected = requests()
    few = name == "mixed"  # read text by text
    expected = expected[:2] if few else expected
    with Engine(served, lookup=False, max_sequences=1, step_tokens=512) as engine:
        assert engine.memory_plan.windows is None  # a step may be longer than the context
        alone = [answers(engine, [item])[0] for item in expected]
    full = plan_memory(served, None, 8, None, STEP)
    assert full.windows is not None and full.windows.span is not None
    pages, window_pages, _ = page_needs(CONTEXT, 8, full.windows.span, 8)
    least = full.page_bytes[0] * pages + full.page_bytes[1] * window_pages
    with pytest.raises(UserError, match="400 tokens needs"):
        plan_memory(served, None, 8, least - 1, STEP)
    calls = [0, 0, 0]
    for settings in (
        {"lookup": False, "max_sequences": 3},
        {"memory": least * 2},
        {"memory": least},
    )[2 * few :]:
        with Engine(served, step_tokens=STEP, **{"max_sequences": 8, **settings}) as engine:
            assert engine.memory_plan.windows is not None
            # at once, and after one another: much is found
            for group in (range(len(expected)), [0], [0], [1, 0]):
                actual = answers(engine, [expected[place] for place in group])
                check_equal(actual, [alone[place] for place in group], name)
            stats = engine.stats()
            now = stats.cached_tokens, stats.preempted, stats.accepted_tokens
            calls = [a + b for a, b in zip(calls, now, strict=True)]
    assert few or all(calls)


@pytest.mark.parametrize("name", NAMES[:2])
def test_beams_find_what_they_find_with_all_pages(name):
    served = model(name)
    lot = random.Random(2)
    prompts = [[lot.randrange(8, tiny.VOCAB) for _ in range(length)] for length in (60, 90)]
    requests = [Request(prompt, beams=4, n=2, max_new=40, stop_tokens=(3,)) for prompt in prompts]
    for memory in (None, plan_memory(served, None, 2, None, STEP).nbytes):
        with Engine(served, step_tokens=STEP, max_sequences=8, memory=memory) as engine:
            assert engine.memory_plan.windows is not None
            # so that parts have other numbers than their pages
            engine.memory_plan.windows.pool._free.reverse()
            handles = [engine.submit(request) for request in requests]
            for prompt, handle in zip(prompts, handles, strict=True):
                handle.result()
                (hypotheses,) = beam(served, None, [prompt], beams=4, best=2, max_new=40, eos=(3,))
                assert [hypothesis.tokens for hypothesis in handle.hypotheses] == [
                    hypothesis.tokens for hypothesis in hypotheses
                ]
            check_windows(engine.memory_plan.windows)
            assert engine.stats().pages_used == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_was_given_back_is_not_looked_at(name):
    """Pages begin as what is no number; what is recorded is what a look at the text alone shows."""
    served = model(name)
    paths = ["*.resid", "*.pattern", "*.scores", "*.z", "logits"]
    prompt = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4] * 15
    with Engine(served, step_tokens=STEP, max_sequences=2) as engine:
        assert isinstance(engine._worker.runner, PagedRunner)
        assert engine.memory_plan.windows is not None
        # so that page 0, which stands where nothing is, is not written
        engine.memory_plan.windows.pool._free.reverse()
        for individual, _ in engine._worker.runner.cache.pages:
            individual.pages.keys.fill_(torch.nan)
            individual.pages.values.fill_(torch.nan)
        edits = ["head_off('decoder.blocks.0.attn', 1)"] if name == "gemma2" else []
        # the second time nobody else will look for its pages, and what is given back is free
        for _ in range(2):
            handle = engine.submit(
                Request(prompt, sampling=Sampling(0), max_new=6, want=paths, edits=edits)
            )
            tokens = handle.result().completions[0].tokens
    truth = look(
        served, None, [prompt + tokens[:-1]], *paths, edits=[parse(edit) for edit in edits]
    )
    assert truth.keys() == handle.records[0].keys()
    for path, value in handle.records[0].items():
        assert torch.allclose(value, truth[path], atol=1e-4), path


def watch(pool, most):
    """Have the most pages that are in use at once written down."""
    take = pool.take

    def taking():
        page = take()
        most[pool] = max(most.get(pool, 0), pool.in_use)
        return page

    pool.take = taking


def test_a_long_text_holds_its_window_and_no_more():
    for name, every in (("starcoder2", False), ("gemma2", True)):
        with Engine(model(name), step_tokens=STEP, max_sequences=2) as engine:
            assert engine.memory_plan.windows is not None
            near = engine.memory_plan.windows.pool
            most = dict[PagePool, int]()
            for pool in (near, engine.memory_plan.pool):
                watch(pool, most)
            engine.submit(
                Request([1] * 300, max_new=50, sampling=Sampling(0), stop_tokens=())
            ).result()
            assert most == {near: 2, engine.memory_plan.pool: 11}
            assert len(near.users) == 2 * 2 * 3  # of two texts, wherever their windows begin, twice
            assert (engine.memory_plan.page_bytes[0] > 0) == every


def test_no_context_is_refused_that_could_be_served_with_all_pages():
    """There are as many window pages as pages while memory is short, never fewer than a text
    needs."""
    for memory in range(1, 4000, 7):
        full_pages, window_pages, most = needs = page_needs(1000, 8, 100, 64)
        pages, pieces = fit_pages(needs, 8, 3, 5, memory)
        assert pages * 3 + pieces * 5 <= max(memory, full_pages * 3 + window_pages * 5)
        if memory >= full_pages * 3 + window_pages * 5:
            assert pages >= full_pages
            assert pieces >= window_pages
        assert pages <= 8 * full_pages
        assert pieces <= most


def test_a_window_of_one_token_and_every_place_in_a_page():
    """Window pages are those that the worst place of a step needs, no more."""
    for span in (1, 2, 31, 32, 33, 34, 100):
        for step in (1, 7, 32, 64):
            worst = max(-(-(at + step) // 32) - max(0, at + 1 - span) // 32 for at in range(200))
            assert page_needs(100_000, 1, span, step)[1] == worst, (span, step)


def test_parts_follow_their_pages():
    """Known contents stay when a page is given back, unknown ones are freed; a page that is taken
    again has none."""
    pool = PagePool(4)
    windows = Windows(pool, 4, 5, 3)
    pages = [pool.take() for _ in range(3)]
    for page in pages:
        windows.take(page)
    pool.know(pages[0])
    windows.give(pages[:2])
    check_windows(windows)
    assert windows.covers(pages, 12)
    assert windows.covers(pages[:1], 4)
    assert not windows.covers(pages[:2], 8)
    assert windows.fits(pages[:2]) == 1
    assert (
        windows.pool.in_use,
        windows.pool.cached,
        windows.pool.free,
    ) == (1, 1, 1)
    windows.share(pages[:1])
    windows.give(pages[:1])
    pool.give(pages[:1])
    windows.take(pool.take())
    windows.take(pool.take())  # the first page again, or another: its part is for somebody else
    assert windows.pool.cached == 0
    assert windows.fits(pages[:1]) == (pages[0] in windows.part_of)
    check_windows(windows)

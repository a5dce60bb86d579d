"""A search in the engine finds what ``generation.beam`` finds, whatever is read beside it, in
however few pages."""

from __future__ import annotations

import random
import time

import pytest

import tiny
from glassformer.core.generation import Sampling, beam
from glassformer.fast import kernels
from glassformer.serve.engine import Engine, Request
from mistakes import mistake
from pages import check_pages

from .test_laws import GENERATORS, TORCH, TWO, pages_of

ENDS = (3, 5, 7)  # so that some end early


def beam_requests(name):
    """Prompts that begin alike and end in the middle of a page, or not, searched for with several
    widths."""
    lot = random.Random(4)
    results = []
    common = [lot.randrange(8, tiny.VOCAB) for _ in range(32)]
    for beams, best, penalty, length in (
        (4, 2, 1.0, 20),
        (3, 1, 0.0, 32),
        (2, 2, 1.5, 31),
        (1, 1, 1.0, 5),
    ):
        ids = [
            *common[:length],
            *[lot.randrange(8, tiny.VOCAB) for _ in range(lot.choice([0, 3]))],
        ]
        options = {
            "max_new": 10,
            "stop_tokens": ENDS,
            "beams": beams,
            "n": best,
            "length_penalty": penalty,
        }
        results.append(Request([1, 5], ids, **options) if name in TWO else Request(ids, **options))
    return results


def search(name, requests, remaining=0, **settings):
    """Hypotheses of an engine for requests submitted at once, with other requests between them."""
    with Engine(tiny.model(name), **settings) as engine:
        plain = {"sampling": Sampling(0.9), "max_new": 12}
        handles = []
        for number, request in enumerate(requests):
            handles.append(engine.submit(request))
            for _ in range(remaining):
                source = request.source
                engine.submit(Request(request.tokens, source, client="b", seed=number, **plain))
        results = [handle.result() for handle in handles]
        while engine.stats().running + engine.stats().waiting:
            time.sleep(0.01)
        assert engine.memory_plan.pool.in_use == 0
        assert not engine._worker.scheduler.suspended
        assert not engine._worker.scheduler.running
        check_pages(engine.memory_plan.pool)
    for handle, result in zip(handles, results, strict=True):
        agrees(handle.hypotheses, result)
    return [handle.hypotheses for handle in handles]


def agrees(actual_result, result):
    """The events tell what was found."""
    assert [completion.tokens for completion in actual_result] == [
        completion.tokens for completion in result.completions
    ]
    assert [completion.logprobs for completion in actual_result] == [
        completion.logprobs for completion in result.completions
    ]
    bounds = ["stop" if item.finish == "eos" else "length" for item in actual_result]
    assert bounds == [completion.finish_reason for completion in result.completions]
    assert result.usage.generated == sum(len(item.tokens) for item in actual_result)


def endings(group):
    return [[(item.tokens, item.finish) for item in result] for result in group]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_search_finds_what_generation_finds(name):
    model = tiny.model(name)
    requests = beam_requests(name)
    for request, result in zip(requests, search(name, requests, 1), strict=True):
        prompt = request.source or request.tokens
        start = {"start": list(request.tokens)} if request.source else {}
        options = {
            "best": request.n,
            "length_penalty": request.length_penalty,
            "max_new": 10,
            "eos": ENDS,
            **start,
        }
        (hypotheses,) = beam(model, None, [prompt], beams=request.beams or 1, **options)
        assert endings([result]) == endings([hypotheses])
        assert [hypothesis.score for hypothesis in result] == pytest.approx(
            [x.score for x in hypotheses], abs=2e-5
        )


@pytest.mark.parametrize("name", ["llama", "gemma2", "nanomoe", "vaswani", "lstm", "strided"])
def test_alone_or_with_others_is_the_same(name):
    """In few pages, where beams wait for each other without any, and with fewer places than
    beams."""
    requests = beam_requests(name)
    alone = [search(name, [request])[0] for request in requests]
    few = {"memory": pages_of(name, 4), "step_tokens": 11}
    crowds = (
        search(name, requests, 2),
        search(name, requests, 1, **few),
        search(name, requests, 1, max_sequences=2),
    )
    for crowd in crowds:
        assert endings(crowd) == endings(alone)
        if name not in TORCH and kernels.path() != "torch":
            assert crowd == alone, "bit for bit"


def test_a_search_can_be_left_and_the_next_one_goes_on():
    model = tiny.model("llama")
    with Engine(model, memory=pages_of("llama", 5), max_sequences=3) as engine:
        handles = [
            engine.submit(Request([number + 8] * 40, max_new=20, stop_tokens=(), beams=4))
            for number in range(20)
        ]
        for handle in handles[::2]:
            handle.cancel()
        reasons = [handle.result().completions[0].finish_reason for handle in handles]
        assert reasons[1::2] == ["length"] * 10
        assert {*reasons[::2]} <= {"cancelled", "length"}
        stats = engine.stats()
        check_pages(engine.memory_plan.pool)
        assert (stats.running, stats.waiting, stats.pages_used) == (
            0,
            0,
            0,
        )
        assert not engine._worker.scheduler.suspended


def test_pages_of_a_prompt_are_shared_by_its_beams():
    """Eight beams of a prompt of a page and a part take nine pages, not sixteen."""
    with Engine(tiny.model("llama")) as engine:
        pool = engine.memory_plan.pool
        most = [0]
        take = pool.take
        pool.take = lambda: (most.append(max(most[-1], pool.in_use + 1)), take())[1]
        engine.submit(Request([*range(8, 46)], max_new=3, stop_tokens=(), beams=8)).result()
        assert most[-1] == 1 + 8


@pytest.mark.parametrize(
    "more, message",
    [
        ({"beams": 0}, "beams is 0"),
        ({"beams": 2, "n": 3}, "best is 3"),
        ({"beams": 2, "max_new": 0}, "max_new is 0"),
        ({"beams": 2, "sampling": Sampling(0.5)}, "leave out sampling"),
        ({"beams": 2, "stop": ["a"]}, "leave out stop"),
        ({"beams": 2, "logit_bias": {1: 2.0}}, "leave out logit_bias"),
        ({"beams": 2, "guide": lambda: lambda tokens: None}, "leave out guide"),
        ({"beams": 2, "logprobs": 0}, "leave out logprobs"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty"),
    ],
)
def test_what_a_search_does_not_take(more, message):
    with mistake(message):
        Request([1, 2], **more)

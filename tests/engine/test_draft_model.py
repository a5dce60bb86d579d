"""A small model guesses; the answers are those without it."""

from __future__ import annotations

import pytest

import tiny
from glassformer.core.generation.sample import Sampling
from glassformer.serve.engine import Engine, Request
from mistakes import mistake
from pages import check_pages

HOW = [Sampling(0), Sampling(0.9), Sampling(1.0, top_p=0.8), Sampling(1, repetition_penalty=1.2)]
PROMPTS = [[number, 3] + [5, 8] * (5 * number) for number in range(6)]
WANTED = [Request(prompt, sampling=HOW[prompt[0] % 4], seed=1, max_new=25) for prompt in PROMPTS]


def run(draft, name="llama", **settings):
    with Engine(tiny.model(tiny.DECODERS[name]), draft=draft, lookup=False, **settings) as engine:
        handles = [engine.submit(item) for item in WANTED]
        results = [handle.result() for handle in handles]
        check_pages(engine.memory_plan.pool)
        return results, engine.stats()


def tokens(results):
    return [result.completions[0].tokens for result in results]


def test_any_draft_model_gives_the_same_answers_and_a_good_one_in_fewer_steps():
    plain, slow = run(None)
    twin = tiny.model(tiny.DECODERS["llama"])
    model = tiny.model(tiny.DECODERS["gpt2"], seed=5)
    for settings in ({}, {"step_tokens": 9}, {"max_sequences": 2, "max_context": 64}):
        good, fast = run(twin, **settings)
        assert tokens(good) == tokens(plain) == tokens(run(model, **settings)[0])
        # it draws by the same luck, so that drawn tokens are guessed as well as greedy ones
        if not settings:
            assert fast.accepted_tokens > 0.95 * fast.drafted_tokens > 0
            assert fast.steps < slow.steps / 3


@pytest.mark.parametrize(
    "name", ["gpt2", "gemma2", "mixtral", "glass", "starcoder2", "alibi", "strided"]
)
def test_whatever_is_guessed_for_another_family_changes_no_answer(name):
    plain = tokens(run(None, name)[0])
    for draft in (tiny.model(tiny.DECODERS[name]), tiny.model(tiny.DECODERS["llama"], seed=5)):
        answers, stats = run(draft, name, step_tokens=9)
        assert tokens(answers) == plain
        assert stats.drafted_tokens > 0


def test_a_model_of_another_kind_is_refused():
    with mistake("decoder with attention"):
        run(tiny.model(tiny.ALL["t5"]))

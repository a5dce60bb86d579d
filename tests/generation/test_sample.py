"""Sampling against transformers' logits processors; drawing against the distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers.generation import logits_process as theirs

from glassformer.core.generation import sample
from glassformer.core.generation.sample import (
    Sampling,
    choose,
    cut,
    draw,
    likeliest,
    log_probability,
    min_p,
    penalise,
    top_k,
    top_p,
)
from mistakes import mistake
from seeding import generator_from


def logits_of(rows=6, vocab=97, spread=3.0):
    return torch.randn(rows, vocab, generator=generator_from(1)) * spread


@pytest.mark.parametrize(
    "cut_off, reference, values",
    [
        (top_k, theirs.TopKLogitsWarper, [1, 5, 96, 97, 500]),
        (top_p, theirs.TopPLogitsWarper, [0.01, 0.3, 0.9, 0.999]),
        (min_p, theirs.MinPLogitsWarper, [0.001, 0.05, 0.5, 1.0]),
    ],
)
def test_what_is_cut_off_is_theirs(cut_off, reference, values):
    for value in values:
        logits = logits_of()
        assert torch.equal(cut_off(logits, value), reference(value)(None, logits))


def test_top_k_keeps_equals():
    assert top_k(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), 2).isfinite().tolist() == [
        [False, True, True, True]
    ]


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_penalty_is_theirs(penalty):
    logits = logits_of()
    ids = torch.randint(97, (6, 20), generator=generator_from(2))
    observed = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    expected = theirs.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)
    assert torch.equal(penalise(logits, observed, penalty), expected)


def test_the_order_is_theirs():
    logits = logits_of()
    chain = [
        theirs.TopKLogitsWarper(20),
        theirs.TopPLogitsWarper(0.8),
        theirs.MinPLogitsWarper(0.1),
    ]
    expected = theirs.TemperatureLogitsWarper(0.7)(None, logits)
    for warper in chain:
        expected = warper(None, expected)
    assert torch.equal(cut(logits / 0.7, Sampling(top_k=20, top_p=0.8, min_p=0.1)), expected)
    most = torch.full((6,), 1 - 2**-24)  # draws the last token that is left
    assert torch.equal(
        choose(logits, most, None, Sampling(0.7, 20, 0.8, 0.1)), draw(expected, most)
    )


@pytest.mark.parametrize("tiny", [{"temperature": 1e-40}, {"top_p": 1e-46}, {"min_p": 1e-320}])
def test_settings_that_fp32_rounds_to_zero_draw_tokens_all_the_same(tiny):
    logits = 3 + logits_of()
    logits[:, 96] = -math.inf
    tokens = choose(logits, torch.full((6,), 0.5), None, Sampling(**tiny))
    assert torch.equal(tokens, logits.argmax(-1)) or ("min_p" in tiny and 96 not in tokens)
    with mistake("give 1e-9 or more"):
        Sampling(repetition_penalty=1e-40)


def test_draws_follow_the_distribution():
    logits = torch.tensor([[2.0, -math.inf, 0.5, 1.0, -1.0]])
    many = 200_000
    uniform = torch.rand(many, generator=generator_from(3))
    share = draw(logits.expand(many, -1), uniform).bincount(minlength=5) / many
    assert share[1] == 0
    # four standard deviations at most
    assert (share - logits.softmax(-1)[0]).abs().max() < 4 * 0.5 / math.sqrt(many)


def test_extreme_luck_never_draws_what_was_cut():
    logits = torch.full((2, 1000), -math.inf)
    logits[:, 400:500] = torch.randn(2, 100, generator=generator_from(4))
    least = torch.tensor([0.0, 0.0])
    most = torch.tensor([1 - 2**-24, 1 - 2**-24])
    assert draw(logits, least).tolist() == [400, 400]
    assert draw(logits, most).tolist() == [499, 499]


def test_rows_that_are_drawn_in_pieces_get_the_same_tokens(monkeypatch):
    logits = 3 * torch.randn(7, 300, generator=generator_from(5))
    uniform = torch.rand(7, generator=generator_from(6))
    together = draw(logits, uniform)
    sums = list[int]()
    cumsum = Tensor.cumsum
    monkeypatch.setattr(
        Tensor, "cumsum", lambda x, *args, **kw: sums.append(len(x)) or cumsum(x, *args, **kw)
    )
    for at_once, expected in ((300 * 3, [3, 3, 1]), (1, [1] * 7), (300 * 7, [7])):
        monkeypatch.setattr(sample, "DRAWN_AT_ONCE", at_once)
        sums.clear()
        assert torch.equal(draw(logits, uniform), together)
        assert sums == expected


def test_a_row_alone_is_drawn_as_among_others():
    logits = torch.randn(300, 1024, generator=generator_from(5)) * 4
    logits[::3, 700:] = -math.inf
    uniform = torch.rand(300, generator=generator_from(6), dtype=torch.float64)
    uniform[:4] = torch.tensor([0.0, 0.0, 1 - 2**-53, 1 - 2**-53], dtype=torch.float64)
    together = draw(logits, uniform)
    alone = [draw(row[None], luck[None]) for row, luck in zip(logits, uniform, strict=True)]
    assert torch.equal(torch.cat(alone), together)
    assert together.max() > 900 and (together[::3] < 700).all()


def test_the_rounding_of_sums_does_not_reach_the_tail():
    logits = torch.full((64, 1001), -18.0)
    logits[:, 0] = 0.0
    # each falls on another part of the tail, which fp32 cannot tell apart
    uniform = 1 - torch.arange(1, 65) * 2.0**-24
    shares = logits[0].softmax(-1).double().numpy().cumsum()
    assert (
        draw(logits, uniform).tolist()
        == np.searchsorted(shares, uniform.double().numpy() * shares[-1], "right").tolist()
    )


def test_the_log_probability_of_a_row_depends_on_no_other_and_is_that_of_the_likeliest():
    """Two threads cut a sum over 50,257 numbers of one row, and rows where there are many."""
    logits = torch.randn(64, 50_257, generator=generator_from(3)) * 4
    tokens, before = logits.argmax(-1), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = log_probability(logits, tokens)
        alone = torch.cat([log_probability(logits[[i]], tokens[[i]]) for i in range(64)])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)
    assert together.tolist() == [best[0][1] for best in likeliest(logits, None, 1)]


def test_greedy_takes_the_likeliest_after_the_penalty():
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    observed = torch.tensor([[True, False, False]])
    assert choose(logits, None, None, Sampling(temperature=0)).item() == 0
    assert (
        choose(logits, None, observed, Sampling(temperature=0, repetition_penalty=1.2)).item() == 1
    )


def test_log_probability_is_the_models_own():
    logits = logits_of()
    tokens = torch.arange(6)
    expected = logits.log_softmax(-1)[torch.arange(6), tokens]
    assert_close(log_probability(logits, tokens), expected)
    half = logits.bfloat16()
    assert_close(log_probability(half, tokens), log_probability(half.float(), tokens))


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
    ],
)
def test_settings_that_mean_nothing(setting):
    with mistake(next(iter(setting))):
        Sampling(**setting)


def test_the_likeliest_of_equal_ones_are_the_first():
    """Against sorted(), with and without ties at the last place."""
    random = generator_from(5)
    for spread in (5, 1_000_000):
        logits = torch.randint(spread, (40, 60), generator=random) / spread
        for count in (1, 7, 50, 60):
            logprobs = logits.log_softmax(-1)
            rows = [[*enumerate(row)] for row in logprobs[:, :50].tolist()]
            expected = [sorted(row, key=lambda pair: -pair[1])[:count] for row in rows]
            assert likeliest(logits, 50, count) == expected


def test_the_likeliest_are_ranked_once(monkeypatch):
    """The whole vocabulary of each token of a prompt is compared with the last again only where
    there is a tie."""

    def fail(*_):
        raise AssertionError("compared again")

    monkeypatch.setattr(sample, "greatest", fail)
    logits = torch.randn(3, 5000, generator=generator_from(6))
    assert [len(row) for row in likeliest(logits, None, 20)] == [20] * 3
    with pytest.raises(AssertionError, match="again"):
        likeliest(torch.zeros(1, 9), None, 3)

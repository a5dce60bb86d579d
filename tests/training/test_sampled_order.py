"""Training computes the sampler's log-probabilities, bit for bit; its gradient is the ordinary one."""

from __future__ import annotations

import random

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer.fast import kernels
from glassformer.serve.rollouts import Sampler
from mistakes import mistake

# rules that are no window, recurrent cells, mixers with a state: torch computes these in an engine
BY_TORCH = {"strided", "fixed", "prefix", "mixed"} | tiny.RECURRENT | tiny.STATES
FAMILIES = sorted(tiny.DECODERS.keys() - BY_TORCH)

pytestmark = pytest.mark.skipif(kernels.path() == "torch", reason="no compiled kernels")


def drawn(model, prompts, count, max_new, seed):
    """A sampler, texts, where their answers begin, and the log-probabilities at drawing."""
    lot = random.Random(seed)
    openings = [lot.choices(range(tiny.VOCAB), k=lot.randint(1, 30)) for _ in range(prompts)]
    sampler = Sampler(model, None, tiny.CONTEXT)
    groups = sampler.draw(openings, count, max_new, range(seed, seed + prompts))
    pairs = [(p, done) for p, group in zip(openings, groups, strict=True) for done in group]
    texts = [[*prompt, *done.tokens] for prompt, done in pairs]
    logs = torch.tensor([log for _, done in pairs for log in done.logprobs])
    return sampler, texts, [len(prompt) for prompt, _ in pairs], logs


def equal(name, dtype, sizes):
    model = tiny.model(name).eval().to(dtype)
    count = 0
    for seed, size in enumerate(sizes):
        sampler, texts, since, before = drawn(model, *size, seed)
        assert sampler.exact
        together, _ = sampler.score(model, texts, since, True)
        alone = [sampler.score(model, [t], [n], True)[0] for t, n in zip(texts, since, strict=True)]
        assert torch.equal(together.detach(), before)
        assert torch.equal(torch.cat(alone).detach(), before)
        count += len(before)
    return count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_training_has_the_samplers_bits(name, dtype):
    assert equal(name, dtype, [(1, 1, 20), (3, 2, 30)]) > 50


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_training_has_the_samplers_bits_in_10_000_tokens(name, dtype):
    assert equal(name, dtype, [(1, 1, 34), (5, 1, 34), (20, 8, 34), (32, 8, 34)]) >= 10_000


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_is_that_of_the_ordinary_pass(name):
    model = tiny.model(name).eval()
    sampler, texts, since, _ = drawn(model, 3, 2, 12, 0)
    gradients = []
    for exact in (True, False):
        model.zero_grad()
        logs, aux = sampler.score(model, texts, since, exact)
        (logs.sum() + (0 if aux is None else aux)).backward()
        gradients.append({path: p.grad for path, p in model.named_parameters()})
    for path, gradient in gradients[1].items():
        if gradient is not None:
            assert_close(gradients[0][path], gradient, atol=2e-3, rtol=2e-3, msg=path)


def test_a_text_beyond_the_samplers_context_is_refused():
    model = tiny.model("gpt2").eval()
    sampler = Sampler(model, None, 8)
    with sampler.engine, mistake("longer than the 8 tokens"):
        sampler.score(model, [[1] * 20], [1], True)

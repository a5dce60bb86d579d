"""The same answer alone, in any batch, order and chunking, with pages shared, taken away or guessed
ahead."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch

import glassformer
import tiny
from glassformer import config as c
from glassformer.core.generation.sample import Sampling
from glassformer.fast import kernels
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.serve.engine import Encode, Engine, Request, page_memory
from glassformer.serve.engine.page_memory import plan_memory
from glassformer.serve.engine.recording import concatenate
from glassformer.serve.engine.runner import StateRunner
from pages import check_pages

GENERATORS = [name for name, cfg in tiny.ALL.items() if cfg.head and not isinstance(cfg, c.Encoder)]
TWO = set(tiny.OTHERS)
# of log-probabilities, where torch's products decide: they sum in another order for other row
# counts
BOUND = 2e-5
TORCH = {"strided", "fixed", "prefix", "mixed"} | tiny.RECURRENT | tiny.STATES
"""Families in which they do even with compiled kernels: rules that are no window, recurrent
cells, mixers that keep a state."""

THREADS = TORCH | TWO
"""Those in which they do where the number of threads is another: torch attends in encoders."""


def requests(name):
    """Prompts of many lengths that begin alike or not, greedy and drawn."""
    lot = random.Random(5)
    results = []
    common = lot.choices(range(tiny.VOCAB), k=40)
    samplings = (
        Sampling(0),
        Sampling(0.8),
        Sampling(1.2, top_p=0.9),
        Sampling(1, repetition_penalty=1.3),
    )
    for number in range(7):
        individual = lot.choices(range(tiny.VOCAB), k=lot.randint(1, 12))
        ids = [*common[: lot.choice([0, 20, 36, 40])], 3, 7, 2, 3, 7, 2, *individual]
        options = {
            "sampling": lot.choice(samplings),
            "seed": number,
            "max_new": lot.randint(1, 12),
            "client": lot.choice("ab"),
            "prompt_logprobs": lot.choice([None, None, 1]),
        }
        texts = ([1, 5], ids) if name in TWO else (ids,)
        results.append(Request(*texts, **options))
    return results


def run(
    model,
    requests,
    order=None,
    count=None,
    **settings,
):
    """Results of an engine for requests submitted at once, in this order, by ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        model = tiny.model(tiny.ALL[model]) if isinstance(model, str) else model
        with Engine(model, **settings) as engine:
            places = order or range(len(requests))
            handles = {place: engine.submit(requests[place]) for place in places}
            results = [handles[place].result() for place in range(len(requests))]
            assert engine.memory_plan.pool.in_use == 0
            check_pages(engine.memory_plan.pool)
    finally:
        torch.set_num_threads(before)
    return results


def logprobs(result):
    prompt = [item.logprob for item in result.prompt_logprobs or () if item.logprob is not None]
    return [
        *prompt,
        *itertools.chain.from_iterable(completion.logprobs for completion in result.completions),
    ]


def check_equal(actual, reference, name="gru", by_torch=TORCH):
    bound = BOUND if name in by_torch or kernels.path() == "torch" else 0.0
    for a, b in zip(actual, reference, strict=True):
        assert [x.tokens for x in a.completions] == [x.tokens for x in b.completions]
        assert logprobs(a) == pytest.approx(logprobs(b), rel=0, abs=bound)


def pages_of(name, count):
    """The memory of so many pages."""
    room = plan_memory(tiny.model(tiny.ALL[name]), None, 32, None)
    return room.nbytes // len(room.pool.users) * count


@pytest.mark.parametrize("name", GENERATORS)
def test_alone_or_with_others_is_the_same(name):
    """Whatever a runner reads beside it: with few pages, small steps, guesses, another order."""
    expected = requests(name)
    alone = [run(name, [item], lookup=False)[0] for item in expected]
    for item, result in zip(expected, alone, strict=True):
        options = {"max_new": item.max_new, "seed": item.seed, **vars(item.sampling)}
        options |= {"start": list(item.tokens)} if item.source else {}
        model = tiny.model(tiny.ALL[name])
        prompt = item.source or item.tokens
        output = glassformer.generate(model, None, prompt, **options).run()
        assert output.tokens[0] == result.completions[0].tokens
        assert result.usage.generated == item.max_new
    check_equal(run(name, expected), alone, name)
    threads = 1 if torch.get_num_threads() > 1 else 2
    check_equal(run(name, expected, count=threads), alone, name, THREADS)
    few = {"step_tokens": 7, "max_sequences": 3}
    check_equal(run(name, expected, order=[3, 1, 0, 2, 6, 5, 4], **few), alone, name)
    few = {"memory": pages_of(name, 4), "step_tokens": 11, "lookup": False}
    check_equal(run(name, expected, **few), alone, name)


@pytest.mark.parametrize("name", ["gru", "lfm2", "mamba2", "qwen3_next", "rwkv7"])
def test_a_prompt_longer_than_a_step_takes_no_state_of_others(name, monkeypatch):
    """Each token is read once, beside a chunk that asks for no logits."""
    lengths = list[int]()
    forward = StateRunner._forward

    def counted(self, chunk):
        before = self.caches.get(chunk.sequence.pages[0])
        ready = before is not None and before.length == chunk.start
        lengths.append(len(chunk.tokens) + (0 if ready else chunk.start))
        return forward(self, chunk)

    monkeypatch.setattr(StateRunner, "_forward", counted)
    items = [Request([1, 2, 3], max_new=8, seed=1), Request([*range(20)], max_new=2, seed=2)]
    run(name, items, step_tokens=6, max_sequences=2)
    assert sum(lengths) == 3 + 7 + 20 + 1


def test_what_is_computed_again_is_edited_again(monkeypatch):
    """A state that was lost is computed from the first token on, with the request's edits."""
    edit = 'head_off("decoder.blocks.1.attn", 1)'
    item = Request([5, 6, 7], max_new=8, seed=1, edits=[edit], want=["*.resid"])
    expected = run("lfm2", [item])
    assert (
        expected[0].completions[0].tokens
        != run("lfm2", [dataclasses.replace(item, edits=())])[0].completions[0].tokens
    )
    forward = StateRunner._forward

    def forgetful(self, chunk):
        self.caches.clear()
        return forward(self, chunk)

    monkeypatch.setattr(StateRunner, "_forward", forgetful)
    check_equal(run("lfm2", [item]), expected, "lfm2")


@pytest.mark.parametrize("name", [name for name in GENERATORS if name not in tiny.RECURRENT])
def test_a_cache_each_gives_what_the_kernels_give(name, monkeypatch):
    """The engine as it is on a GPU, computed by a CPU: one sequence after another, by PyTorch."""
    expected_requests = requests(name)
    expected = run(name, expected_requests)
    monkeypatch.setattr(page_memory, "by_kernels", lambda model: False)
    for settings in ({}, {"step_tokens": 7, "max_sequences": 3, "lookup": False}):
        check_equal(run(name, expected_requests, **settings), expected, name, {name})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_texts_have_the_same_bits_by_any_number_of_threads(dtype):
    """Thousands of keys, which the kernels cut in parts; by torch's path there is no such
    promise."""
    if kernels.path() == "torch":
        pytest.skip("needs the compiled kernels")
    model = tiny.model(dataclasses.replace(tiny.DECODERS["llama"], context=4096)).to(dtype)
    lot = random.Random(1)
    requests = [
        Request(
            lot.choices(range(tiny.VOCAB), k=length),
            sampling=Sampling(0),
            max_new=8,
            prompt_logprobs=0,
        )
        for length in (3000, 30, 700, 1500)
    ]
    results = [
        [logprobs(result) for result in run(model, requests, order, count, step_tokens=step)]
        for count, order, step in (
            (1, [0, 1, 2, 3], 512),
            (2, [3, 1, 0, 2], 100),
            (2, [2, 3, 1, 0], 4096),
        )
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "name", [name for name in GENERATORS if name not in tiny.RECURRENT | tiny.STATES]
)
def test_quantized_models_say_the_same_alone_with_others_and_by_two_threads(name, bits):
    model = tiny.model(tiny.ALL[name])
    expected = requests(name)
    quantize_weights(model, QuantizedLayout(bits=bits))
    alone = run(model, expected, count=1, lookup=False, max_sequences=1)
    for settings in ({"step_tokens": 7}, {}):
        check_equal(run(model, expected, count=2, **settings), alone, name, THREADS)


def test_pages_are_shared_taken_away_and_guesses_are_right_sometimes():
    """The events that the law above runs through do happen."""
    model = tiny.model(tiny.DECODERS["llama"])
    expected = requests("llama")
    repeat = [Request([1, 2, 3, 4] * 10, sampling=Sampling(0), max_new=20, logit_bias={1: 50.0})]
    with Engine(model, memory=pages_of("llama", 6), max_sequences=8) as engine:
        for handle in [engine.submit(item) for item in expected * 3 + repeat]:
            handle.result()
        stats = engine.stats()
    assert stats.preempted
    assert stats.cached_tokens
    assert stats.accepted_tokens
    assert stats.steps < stats.generated_tokens


@pytest.mark.parametrize(
    "name",
    [
        *("bert", "modernbert", "albert", "esm", "reader", "onward", "llama", "pooled", "gru"),
        *sorted(tiny.STATES),
    ],
)
def test_texts_side_by_side_are_encoded_as_alone(name):
    lot = random.Random(1)
    texts = [[lot.randrange(tiny.VOCAB) for _ in range(lot.randint(1, 30))] for _ in range(12)]
    model = tiny.model(tiny.ALL[name])
    outputs = (
        ["vector", "hidden"]
        + ["logits"] * (model.head is not None)
        + ["labels"] * (model.config.pool is not None)
    )
    encodes = [Encode(text, output=output) for text in texts for output in outputs]
    with Engine(model, step_tokens=40) as engine:
        alone = [engine.encode(encode) for encode in encodes]
        for item, handle in zip(alone, [engine.submit(encode) for encode in encodes], strict=True):
            output = handle.result().output
            assert output is not None
            assert output.shape == item.shape
            assert (output - item).abs().max() < 1e-4


@pytest.mark.parametrize("length", [3, 7])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "llama"])
def test_patterns_of_torch_have_every_head_and_every_token(name, length, monkeypatch):
    """Recorded where PyTorch attends, of texts shorter and longer than there are heads."""
    monkeypatch.setattr(page_memory, "by_kernels", lambda model: False)
    model = tiny.model(tiny.ALL[name])
    names = ["*.attn.scores", "*.attn.pattern", "*.attn.q"]
    with Engine(model, step_tokens=5) as engine:
        item = Request([*range(length)], max_new=0, want=names)
        records = concatenate([*filter(None, (event.records for event in engine.submit(item)))])
    expected = glassformer.look(model, None, [*range(length)], *names)
    assert records.values.keys() == expected.keys() and expected
    for path, value in expected.items():
        assert torch.allclose(records.values[path], value, atol=1e-5), path


def test_half_of_many_leave_and_nothing_is_left_behind():
    lot = random.Random(3)
    model = tiny.model(tiny.DECODERS["gemma2"])
    with Engine(
        model, max_sequences=6, max_queue=400, memory=pages_of("gemma2", 7), step_tokens=9
    ) as engine:
        handles = [
            engine.submit(Request([lot.randrange(50)] * lot.randint(1, 30), n=2, max_new=20))
            for _ in range(200)
        ]
        for handle in handles[::2]:
            next(iter(handle))
            handle.cancel()
        for handle in handles:
            reasons = {completion.finish_reason for completion in handle.result().completions}
            assert reasons <= {"length", "cancelled"}
            assert handle in handles[::2] or reasons == {"length"}
        stats = engine.stats()
        check_pages(engine.memory_plan.pool)
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
    assert stats.finished + stats.cancelled == 200 == stats.requests

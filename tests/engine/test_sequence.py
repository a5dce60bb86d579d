"""What is recorded of a running request is what a look at its text alone shows; others keep their
bits. Guesses come from what stood earlier in the text."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from glassformer.core.errors import UserError
from glassformer.core.generation import generate
from glassformer.core.generation.sample import Sampling
from glassformer.core.nn import Tape
from glassformer.fast import kernels
from glassformer.serve.engine import Engine, Event, Request
from glassformer.serve.engine.page_memory import plan_memory
from glassformer.serve.engine.recording import Look
from glassformer.serve.engine.sequence import (
    WAKING,
    PromptLookup,
    RequestHandle,
    Sequence,
)
from glassformer.sight.edits import head_off, scale
from mistakes import mistake
from pages import ask

PATHS = ["*.resid", "*.pattern", "*.scores", "*.z", "*.hidden", "logits"]
OTHERS = [Request([number, 2, 3, 4, 5] * 3, sampling=Sampling(0), max_new=9) for number in range(4)]


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "mixed"])
def test_a_running_request_is_looked_into(name):
    model = tiny.model(name)
    prompt = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4] * 4
    with Engine(model, step_tokens=17) as engine:
        alone = [engine.submit(item).result() for item in OTHERS]
        handles = [engine.submit(item) for item in OTHERS[:2]]
        looked = engine.submit(Request(prompt, sampling=Sampling(0), max_new=6, want=PATHS))
        handles += [engine.submit(item) for item in OTHERS[2:]]
        results = [handle.result() for handle in handles]
        tokens = looked.result().completions[0].tokens
    assert [result.completions[0].tokens for result in results] == [
        item.completions[0].tokens for item in alone
    ]
    bound = 0.0 if name in ("llama", "gemma2", "mixtral") and kernels.path() != "torch" else 2e-5
    for a, b in zip(alone, results, strict=True):
        pairs = zip(a.completions[0].logprobs, b.completions[0].logprobs, strict=True)
        assert max(abs(x - y) for x, y in pairs) <= bound
    tape = Tape(*PATHS)
    with torch.no_grad():
        model(torch.tensor([prompt + tokens[:-1]]), tape=tape)
    records = looked.records[0]
    assert records.keys() == tape.records.keys()
    for path, value in records.items():
        assert value.shape == tape.records[path].shape, path
        assert torch.allclose(value, tape.records[path], atol=1e-4), path


def test_only_what_is_asked_for_is_read_again():
    """Values from a place on, of every continuation, event by event; what pages hold before it is
    not computed."""
    model = tiny.model("llama")
    prompt = [3, 1, 4, 1, 5] * 10
    paths = ["*.1.attn.pattern", "*.0.resid", "logits"]
    tape = Tape("*.1.attn.pattern", "*.0.resid", "logits")
    with Engine(model, step_tokens=17) as engine:
        ask(engine, prompt, max_new=1)
        options = {
            "max_new": 7,
            "n": 2,
            "seed": 3,
            "want": paths,
            "since": 40,
            "prompt_logprobs": 2,
        }
        handle = engine.submit(Request(prompt, **options))
        events = list(handle)
        result = handle.collect(events)
        assert result.usage.cached == 32
        assert result.prompt_logprobs is not None
        scores = engine.score(prompt, 2)
        assert [logprob.token for logprob in result.prompt_logprobs] == prompt[40:]
        for a, b in zip(result.prompt_logprobs[1:], scores[41:], strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
    for index, completion in enumerate(result.completions):
        ids = [*prompt, *completion.tokens[:-1]]
        with torch.no_grad():
            model(torch.tensor([ids]), tape=tape)
        for path, value in handle.records[index].items():
            axis = 2 if path.endswith("pattern") else 1
            assert torch.allclose(value, tape[path].narrow(axis, 40, len(ids) - 40), atol=1e-4), (
                path
            )
        records = [
            event.records for event in events if event.index == index and event.records is not None
        ]
        assert [piece.start for piece in records] == [40, *range(50, 56)], (
            "the prompt's, then one at a time"
        )


def test_an_ablation_by_the_mean_is_the_same_in_chunks():
    model = tiny.model("llama")
    prompt = [3, 1, 4, 1, 5] * 8
    edit = head_off("decoder.blocks.0.attn", 1, fill="mean")
    options = {"sampling": Sampling(0), "max_new": 12}
    alone = generate(model, None, prompt, temperature=0, max_new=12, edits=[edit]).run().tokens[0]
    with Engine(model, step_tokens=90) as engine:
        handles = [engine.submit(Request([number] * 50, max_new=12)) for number in range(3)]
        assert ask(engine, prompt, edits=[edit], **options).completions[0].tokens == alone
        assert all(handle.result() for handle in handles)
    with (
        Engine(model, step_tokens=32) as engine,
        mistake("mean over 40 tokens"),
    ):
        engine.submit(Request(prompt, edits=[edit], **options))


def test_logits_can_be_edited():
    model = tiny.model("llama")
    prompt = [3, 1, 4, 1, 5]
    edits = [scale("logits", -1.0)]
    options = {"sampling": Sampling(0), "max_new": 8}
    alone = generate(model, None, prompt, temperature=0, max_new=8, edits=edits).run().tokens[0]
    plain = generate(model, None, prompt, temperature=0, max_new=8).run().tokens[0]
    with Engine(model) as engine:
        handles = [engine.submit(Request(prompt, edits=group, **options)) for group in (edits, [])]
        assert [handle.result().completions[0].tokens for handle in handles] == [
            alone,
            plain,
        ]
        assert alone != plain


def test_an_edit_is_of_one_request_alone():
    model = tiny.model("llama")
    prompt = [3, 1, 4, 1, 5] * 8
    edit = head_off("decoder.blocks.0.attn", 1)
    options = {"sampling": Sampling(0), "max_new": 12}
    plain = generate(model, None, prompt, temperature=0, max_new=12).run().tokens[0]
    edited = generate(model, None, prompt, temperature=0, max_new=12, edits=[edit]).run().tokens[0]
    assert plain != edited
    with Engine(model) as engine:
        handles = [
            engine.submit(Request(prompt, edits=group, **options))
            for group in ((), [edit], (), [edit])
        ]
        tokens = [handle.result().completions[0].tokens for handle in handles]
        again = ask(engine, prompt, **options)
    assert tokens == [plain, edited, plain, edited]
    assert again.completions[0].tokens == plain
    assert again.usage.cached == 32


def test_what_is_not_there_is_refused():
    with Engine(tiny.model("llama")) as engine:
        with mistake("No value is called"):
            engine.submit(Request([1], want=["decoder.nothing"]))
        with pytest.raises(UserError):
            engine.submit(Request([1], edits=[head_off("decoder.blocks.9.attn", 1)]))
    with (
        Engine(tiny.model("vaswani")) as engine,
        mistake("looks inside decoders only"),
    ):
        engine.submit(Request([1], [2], want=["*"]))


def test_what_is_read_again_is_recorded_once():
    """Texts that lost their pages and were read from the beginning again."""
    model = tiny.model("llama")
    room = plan_memory(tiny.model("llama"), None, 8, None)
    prompts = [[number, *range(28)] for number in range(6)]
    with Engine(model, memory=room.nbytes // len(room.pool.users) * 5) as engine:
        requests = [
            Request(prompt, sampling=Sampling(0), max_new=30, want=["*.1.resid"])
            for prompt in prompts
        ]
        handles = [engine.submit(request) for request in requests]
        for prompt, handle in zip(prompts, handles, strict=True):
            ids = [*prompt, *handle.result().completions[0].tokens][:-1]
            tape = Tape("*.1.resid")
            with torch.no_grad():
                model(torch.tensor([ids]), tape=tape)
            records = handle.records[0]["decoder.blocks.1.resid"]
            assert records.shape == (1, len(ids), tiny.DIM)
            assert torch.allclose(records, tape["decoder.blocks.1.resid"], atol=1e-4)
        assert engine.stats().preempted


def test_an_edit_that_fails_is_of_its_request_alone():
    """One that makes infinite numbers in the middle, and one whose effect overflows later."""
    model = tiny.model("llama")
    prompt = [3, 1, 4, 1, 5]
    far = [scale("decoder.blocks.0.attn.q", float("1e39")), scale("logits", 3e38)]
    with Engine(model) as engine:
        alone = ask(engine, prompt, seed=1, max_new=8).completions
        wrong = [engine.submit(Request(prompt, edits=[edit], n=2, max_new=8)) for edit in far]
        handle = engine.submit(Request(prompt, seed=1, max_new=8))
        for item in wrong:
            with mistake("infinite"):
                item.result()
        assert handle.result().completions == alone
        assert engine.alive


def test_what_was_kept_of_a_chunk_is_held_no_longer():
    look = Look(["*"], {})
    look.tape.records["a"] = torch.ones(1, 3, 2)
    look.keep(0, 3)
    assert not look.tape.records
    assert look.pieces[0].values["a"].shape == (1, 3, 2)
    look.keep(3, 1)
    assert len(look.pieces) == 1, "nothing was recorded of the next one"


def test_what_followed_the_same_end_the_last_time_is_guessed():
    text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 2, 3]
    assert PromptLookup(most=3).propose(text, 9) == [5, 6, 7]
    assert PromptLookup(most=3).propose(text, 1) == [5]
    assert PromptLookup().propose([1, 2, 3, 4], 9) == [] == PromptLookup().propose(text, 0)
    # the longer end counts
    assert PromptLookup(most=2).propose([1, 2, 3, 8, 9, 7, 2, 3, 5, 1, 2, 3], 9) == [8, 9]


def test_guesses_that_are_wrong_stop_for_a_while():
    lookup = PromptLookup()
    text = [5, 6] * 9
    assert len(lookup.propose(text, 9)) == 7
    for _ in range(3):
        lookup.learn(4, 0)
    assert [bool(lookup.propose(text, 9)) for _ in range(5)] == [False, False, False, True, True]
    assert len(lookup.propose(text, 9)) == 2
    for _ in range(3):
        lookup.learn(2, 2)
    assert len(lookup.propose(text, 9)) == 7


def test_a_thousand_biases_are_one_addition():
    """A step of everybody costs the same for few biases and for many, and the same numbers."""
    bias = {token: token / 7 - 90 for token in range(1000)}
    calls = list[str]()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    sequence = Sequence(RequestHandle(Request([1], logit_bias=bias), lambda handle: None))
    logits = torch.randn(1024)
    with Calls():
        adjusted = sequence.adjusted(logits)
    expected = logits.clone()
    for token, value in bias.items():
        expected[token] += value
    assert len(calls) < 20 and torch.equal(adjusted, expected)


def test_what_is_written_for_a_waiting_task_does_not_wake_it():
    """Events keep their order, and nothing is written for a task that does not wait."""
    written = list[str]()

    async def read(handle):
        return [event.text async for event in handle]

    async def main():
        handle = RequestHandle(Request([1]), lambda handle: None)
        channel = handle.channel

        def write(handle, event):
            written.extend([event.text] if event.finish_reason is None else [])
            return event.finish_reason is None

        channel.write = write
        handle.put(Event(0, text="a"))
        task = asyncio.create_task(read(handle))
        await asyncio.sleep(0)
        for text in "bc":
            handle.put(Event(0, text=text))
        assert written == ["b", "c"] and not channel.unread
        handle.put(Event(0, text="d", finish_reason="stop", usage=handle.usage))
        handle.put(Event(0, text="e"))
        assert written == ["b", "c"] and channel.unread == 2
        assert await asyncio.wait_for(task, 10) == ["a", "d"]

        left = RequestHandle(Request([1]), lambda handle: None)
        left.channel.write = write
        task = asyncio.create_task(read(left))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        left.put(Event(0, text="f"))
        assert written == ["b", "c"] and left.channel.unread == 1

    asyncio.run(main())


def test_the_tasks_of_a_step_are_woken_at_once():
    """An event wakes its task at once; the events of a step call their loop once, at its end."""
    calls = list[str]()

    async def collect(handle):
        return [event.text async for event in handle]

    async def main():
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counting(*args):
            calls.append("call")
            return call(*args)

        loop.call_soon_threadsafe = counting
        handles = [RequestHandle(Request([1]), lambda handle: None) for _ in range(3)]
        tasks = [asyncio.create_task(collect(handle)) for handle in handles]
        await asyncio.sleep(0)
        handles[0].put(Event(0, text="alone"))
        assert calls == ["call"]
        for _ in range(3):
            await asyncio.sleep(0)
        with WAKING:
            for handle in handles:
                handle.put(Event(0, text="a", finish_reason="stop", usage=handle.usage))
            assert calls == ["call"]
        assert calls == ["call"] * 2
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert asyncio.run(main()) == [["alone", "a"], ["a"], ["a"]]

"""An engine answers each request, however it is begun, as if it were alone."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest
import torch

import glassformer
import tiny
from glassformer import config as c
from glassformer.core.errors import UserError
from glassformer.core.generation.sample import Sampling, likeliest, top_p
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.fast import kernels
from glassformer.serve.engine import (
    Encode,
    Engine,
    EngineClosed,
    QueueFull,
    Request,
    RequestTooLarge,
)
from glassformer.sight import looking
from mistakes import mistake
from pages import ask

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3], [2]]
GREEDY = Sampling(0)
WARM = Sampling(0.9, top_k=20, repetition_penalty=1.2)


def test_several_continuations_are_those_of_generate():
    model = tiny.model("llama")
    output = glassformer.generate(model, None, PROMPTS[0], samples=3, seed=5, max_new=9).run()
    with Engine(model) as engine:
        result = ask(engine, PROMPTS[0], n=3, seed=5, max_new=9)
    assert [completion.tokens for completion in result.completions] == output.tokens
    for completion, logprob in zip(result.completions, output.logprobs, strict=True):
        assert torch.allclose(torch.tensor(completion.logprobs), torch.tensor(logprob), atol=1e-5)


def test_log_probabilities_are_those_that_are_asked_for():
    """A request without them has none, whoever shares its step, and the same tokens."""
    model = tiny.model("llama")
    with Engine(model) as engine:
        plain = Request(PROMPTS[0], seed=5, max_new=9)
        bare = dataclasses.replace(plain, scored=False)
        handles = [engine.submit(request) for request in (plain, bare, plain)]
        first, second, third = [handle.result().completions[0] for handle in handles]
        alone = engine.submit(bare).result().completions[0]
    assert first == third and len(first.logprobs) == 9
    assert second.tokens == alone.tokens == first.tokens
    assert second.logprobs == alone.logprobs == []


@pytest.mark.parametrize("name", ["llama", "t5", "glass", "gru"])
def test_the_prompt_of_several_continuations_is_read_once(name):
    """To the middle of a page, which is copied; a state is not, and is made again. The same bits as
    one by one."""
    model = tiny.model(name)
    prompt = [*range(1, 22)] * 2
    paged = name != "gru"
    options = {"seed": 5, "max_new": 4, "sampling": Sampling(1.0)}
    with Engine(model, lookup=False) as engine:
        start = (
            Request([*range(1, 20)], prompt, **options)
            if name == "t5"
            else Request(prompt, **options)
        )
        length = len(start.tokens)
        ids = list[int]()
        alone = [
            engine.submit(dataclasses.replace(start, first=place)).result().completions[0]
            for place in range(3)
        ]
        plain = engine._worker.runner.forward
        engine._worker.runner.forward = lambda chunks: (
            ids.extend(len(chunk.tokens) for chunk in chunks) or plain(chunks)
        )
        fresh = [token + 1 for token in start.tokens]  # nothing of it is in pages
        again = engine.submit(dataclasses.replace(start, tokens=fresh, n=3)).result().completions
        assert sum(ids) == length + 3 * 3 + 2 * (1 if paged else length)
        apart = [
            engine.submit(dataclasses.replace(start, tokens=fresh, first=place)).result()
            for place in range(3)
        ]
        several = engine.submit(dataclasses.replace(start, n=3)).result().completions
    exact = kernels.path() != "torch" and paged
    for item, second in [
        *zip(several, alone, strict=True),
        *zip(again, (x.completions[0] for x in apart), strict=True),
    ]:
        assert item.tokens == second.tokens
        assert item.logprobs == (
            second.logprobs if exact else pytest.approx(second.logprobs, abs=1e-5)
        )


def test_a_prompt_is_scored():
    """Each token of ``record_scores`` has the log-probability that the model gives it after those
    before."""
    model = tiny.model("gpt2")
    ids = PROMPTS[2]
    logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    with Engine(model) as engine:
        scores = engine.score(ids, top=2)
    assert scores[0].logprob is None
    assert [score.token for score in scores] == ids
    for place, score in enumerate(scores[1:]):
        assert score.logprob == pytest.approx(logprobs[place, ids[place + 1]].item(), abs=1e-5)
        assert [token for token, _ in score.top] == logprobs[place].topk(2).indices.tolist()


def test_bias_and_guide_and_stop_tokens_are_kept_to():
    allowed = torch.zeros(7, dtype=torch.bool)  # what lies beyond is not allowed
    allowed[[4, 6]] = True
    calls = []

    def guide():
        return lambda tokens: (calls.append(len(tokens)), allowed)[1]

    with Engine(tiny.model("llama")) as engine:
        guided = ask(engine, [1, 2], max_new=8, seed=1, guide=guide)
        assert {*guided.completions[0].tokens} <= {4, 6}
        assert calls == [*range(8)]
        biased = ask(engine, [1, 2], max_new=4, sampling=GREEDY, logit_bias={9: 100.0})
        assert biased.completions[0].tokens == [9] * 4
        stopped = ask(engine, [1, 2], max_new=4, logit_bias={9: 100.0}, stop_tokens=[9])
        assert stopped.completions[0].stopped_by == 9
        assert stopped.completions[0].finish_reason == "stop"


def test_often_said_is_said_less():
    with Engine(tiny.model("llama")) as engine:
        bias = {3: 50.0, 4: 49.5, 5: 49.0}
        once = ask(engine, [1], sampling=GREEDY, max_new=3, logit_bias=bias, presence_penalty=60.0)
        assert sorted(once.completions[0].tokens) == [3, 4, 5]
        # 3 is said until it was said twice: 500, 470, then 440 against 450
        bias = {3: 500.0, 4: 450.0}
        often = {"logit_bias": bias, "frequency_penalty": 30.0}
        twice = ask(engine, [1], sampling=GREEDY, max_new=4, **often)
        assert twice.completions[0].tokens == [3, 3, 4, 3]


def test_a_cancelled_request_ends_and_says_so():
    with Engine(tiny.model("gpt2")) as engine:
        handle = engine.submit(Request([1], max_new=60, n=2))
        events = []
        for event in handle:
            events.append(event)
            handle.cancel()
        assert [event.finish_reason for event in events if event.finish_reason] == ["cancelled"] * 2
        assert events[-1].usage is not None
        assert engine.stats().cancelled == 1
        assert ask(engine, [1], max_new=3).usage.generated == 3


def test_what_has_ended_is_not_cancelled_too():
    """Of two continuations one ends at its stop token; then the request is cancelled."""
    started = []

    def guide():
        started.append(len(started))
        allowed = torch.zeros(10, dtype=torch.bool)
        allowed[9 if started[-1] == 0 else 3] = True
        return lambda tokens: allowed

    with Engine(tiny.model("gpt2")) as engine:
        handle = engine.submit(Request([1], max_new=60, n=2, guide=guide, stop_tokens=[9]))
        events = []
        for event in handle:
            events.append(event)
            if event.finish_reason == "stop":
                handle.cancel()
    assert [event.finish_reason for event in events if event.finish_reason] == ["stop", "cancelled"]


def test_events_come_to_a_task_too():
    with Engine(tiny.model("gpt2")) as engine:

        async def collect():
            return [
                event.token
                async for event in engine.submit(Request([1, 2], sampling=GREEDY, max_new=6))
            ]

        async def several():
            return await asyncio.gather(*[collect() for _ in range(5)])

        result = asyncio.run(several())
        assert len(result[0]) == 6
        assert result == [result[0]] * 5


def test_a_full_queue_refuses_and_a_closed_engine_too():
    engine = Engine(tiny.model("gpt2"), max_queue=2, max_sequences=1)
    hold = threading.Event()

    def guide():
        return lambda tokens: hold.wait(20) and None

    first = engine.submit(Request([1], max_new=1, guide=guide))
    while engine.stats().running == 0:
        pass
    waiting = [engine.submit(Request([1], max_new=1)) for _ in range(2)]
    with pytest.raises(QueueFull):
        engine.submit(Request([1], max_new=1))
    hold.set()
    assert [item.result().usage.generated for item in (first, *waiting)] == [1, 1, 1]
    engine.close()
    with pytest.raises(EngineClosed):
        engine.submit(Request([1]))


def test_what_makes_no_sense_is_refused_in_a_sentence():
    with Engine(tiny.model("gpt2")) as engine:
        for wrong in (
            Request([]),
            Request([1] * 65),
            Request([99]),
            Request([1], [2]),
            Request([1], stop=["x"]),
        ):
            with pytest.raises(UserError):
                engine.submit(wrong)
        with pytest.raises(UserError):
            engine.submit(Encode([1], output="labels"))
    with pytest.raises(UserError):
        Request([1], n=0)


def test_a_request_that_fails_says_why_and_the_next_is_answered():
    def guide():
        return lambda tokens: {}["no grammar"]

    with Engine(tiny.model("gpt2")) as engine:
        handle = engine.submit(Request([1], guide=guide))
        with pytest.raises(KeyError, match="no grammar"):
            handle.result()
        assert ask(engine, [1], max_new=2).usage.generated == 2
        assert engine.stats().failed == 1


def test_encoders_give_vectors_labels_and_logits():
    model = tiny.model(tiny.OTHERS["bert"])
    ids = PROMPTS[2]
    segments = [0] * 5 + [1] * 3
    out = model(torch.tensor([ids]), segments=torch.tensor([segments]))
    with Engine(model) as engine:
        labels = engine.encode(Encode(ids, segments, output="labels"))
        assert torch.allclose(labels, out.pooled[0], atol=1e-5)
        logits = engine.encode(Encode(ids, segments, output="logits", positions=[2, 5]))
        assert torch.allclose(logits, out.logits[0, [2, 5]], atol=1e-4)
        vector = engine.encode(Encode(ids, segments))
        assert torch.allclose(vector, out.hidden[0].mean(0), atol=1e-5)
        with pytest.raises(UserError):
            engine.submit(Request(ids))


def test_a_pass_that_fails_is_tried_one_by_one_and_the_engine_goes_on():
    """A pass too large for the memory ends nobody; where every pass fails all are told, and then it
    works again."""
    engine = Engine(tiny.model("gpt2"), max_sequences=4)
    request = Request([1, 2], n=3, max_new=5, seed=1)
    forward = engine._worker.runner.forward
    most = [3]

    def fails(*args):
        if len(args[0]) > most[0]:
            raise MemoryError("not enough")
        return forward(*args)

    engine._worker.runner.forward = fails
    with engine:
        handles = [engine.submit(request) for _ in range(6)]
        answers = [
            [completion.tokens for completion in handle.result().completions] for handle in handles
        ]
        assert answers == [answers[0]] * 6
        assert engine.stats().failed == 0
        most[0] = 0
        for handle in [engine.submit(request) for _ in range(6)]:
            with pytest.raises(MemoryError, match="not enough"):
                handle.result()
        assert engine.stats().failed == 6
        assert engine.stats().pages_used == 0
        most[0] = 3
        assert [
            completion.tokens for completion in engine.submit(request).result().completions
        ] == answers[0]


def test_a_long_prompt_does_not_starve_who_writes():
    """Another client that comes later begins within two steps; from then on every step has a token
    of it."""
    engine = Engine(
        tiny.model(dataclasses.replace(tiny.DECODERS["llama"], context=2048)),
        step_tokens=64,
        lookup=False,
    )
    forward = engine._worker.runner.forward
    event = threading.Event()
    steps = list[dict[int, int]]()

    def counted(chunks):
        event.wait(60)
        steps.append({chunk.sequence.request.seed: len(chunk.tokens) for chunk in chunks})
        return forward(chunks)

    engine._worker.runner.forward = counted
    with engine:
        long = engine.submit(Request([7] * 1900, max_new=1, seed=1, client="a"))
        short = engine.submit(Request([1, 2], max_new=20, seed=2, stop_tokens=(), client="b"))
        event.set()
        assert short.result().usage.generated == 20
        assert long.result().usage.generated == 1
    of_short = [number for number, step in enumerate(steps) if 2 in step]
    assert of_short == [*range(of_short[0], of_short[0] + 20)]
    assert of_short[0] <= 2
    assert all(step.get(1, 0) > 0 for step in steps)
    assert max(sum(step.values()) for step in steps) <= 64


def test_closing_ends_what_is_under_way():
    engine = Engine(tiny.model("gpt2"), max_sequences=2)
    handles = [engine.submit(Request([1], n=2, max_new=60)) for _ in range(5)]
    next(iter(handles[0]))
    engine.close()
    reasons = [
        completion.finish_reason for handle in handles for completion in handle.result().completions
    ]
    assert {*reasons} <= {"cancelled", "length"}
    assert reasons[-1] == "cancelled"


def test_weights_that_are_no_numbers_are_told():
    model = tiny.model("gpt2")
    with torch.no_grad():
        model.decoder.blocks[0].ffn.up.weight.fill_(torch.nan)
    with Engine(model) as engine, pytest.raises(UserError):
        ask(engine, [1])
    model = tiny.model(tiny.OTHERS["bert"])
    with torch.no_grad():
        model.encoder.blocks[0].ffn.up.weight.fill_(torch.nan)
    with Engine(model) as engine:
        with mistake("NaN"):
            engine.encode(Encode([1, 2]))
        assert engine.stats().failed == 1


def test_texts_end_at_stop_strings_and_at_eos_as_those_of_generate():
    model = tiny.model(dataclasses.replace(tiny.DECODERS["llama"], embed=c.Embed(300)))
    tokenizer = train_tokenizer("byte", [])
    prompts = ["Once upon", "a time", "x"]
    options = {"temperature": 1.3, "top_k": 40}
    output = glassformer.generate(model, tokenizer, prompts, max_new=30, seed=3, **options).run()
    letters = sorted(letter for letter in {*output.text} if letter.isalnum())
    stops = [letters[0], output.texts[1][4:6]]
    second_output = glassformer.generate(
        model, tokenizer, prompts, max_new=30, seed=3, stop=stops, **options
    ).run()
    assert "stop" in second_output.finishes
    with Engine(model, tokenizer) as engine:
        for prompt, text, tokens, finish in zip(
            prompts, second_output.texts, second_output.tokens, second_output.finishes, strict=True
        ):
            ids = glassformer.generate(model, tokenizer, prompt, max_new=1).rows[0].prompt
            request = Request(ids, sampling=Sampling(**options), seed=3, max_new=30, stop=stops)
            events = [*engine.submit(request)]
            assert "".join(event.text for event in events) == text
            assert [event.token for event in events] == tokens
            last = events[-1]
            assert last.finish_reason == {"eos": "stop"}.get(str(finish), finish)
            assert (last.stopped_by in stops) == (finish == "stop")
        eos = ask(engine, [1, 2], logit_bias={int(tokenizer.eos or 0): 99.0}, max_new=5)
        assert eos.completions[0].finish_reason == "stop"
        assert eos.text == ""
        assert eos.completions[0].stopped_by == tokenizer.eos


def test_likeliest_of_equal_ones_does_not_depend_on_neighbours():
    """Equal logits come by their ids, whoever else asks for how many."""
    logits = torch.zeros(2, 300)
    logits[:, [250, 7, 90]] = 2.0
    for count in (1, 2, 3, 5, 20):
        ids = [[token for token, _ in row] for row in likeliest(logits, None, count)]
        assert ids == [[7, 90, 250, *(id for id in range(20) if id != 7)][:count]] * 2
    wide = torch.zeros(2, 300)
    wide[1, 5] = 9.0  # a neighbour that has more or fewer above the bar
    pair = top_p(wide, 0.31)
    alone = top_p(wide[:1], 0.31)
    assert torch.equal(pair[:1], alone)
    assert alone.isfinite().nonzero()[:, 1].tolist() == [*range(93)]


def test_guesses_after_the_end_are_not_taken():
    """A text that ends at a token in the middle of right guesses says the same as without them."""
    model = tiny.model("llama")
    prompt = [1, 2, 3, 4] * 8
    with Engine(model, lookup=False) as engine:
        free = ask(engine, prompt, sampling=GREEDY, max_new=12, logit_bias={1: 50.0})
    assert free.completions[0].tokens == [1] * 12
    for length in range(1, 13):
        with Engine(model) as engine:
            handle = engine.submit(
                Request([1] * 20, sampling=GREEDY, max_new=length, logit_bias={1: 50.0})
            )
            events = [*handle]
        assert [event.token for event in events] == [1] * length
        assert events[-1].finish_reason == "length"
        assert [event.finish_reason for event in events[:-1]] == [None] * (length - 1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
def test_a_row_that_ends_takes_no_guesses_while_its_request_goes_on(seed):
    """Ends are drawn in the middle of right guesses, of each row at another place."""
    model = tiny.model("llama")
    request = Request(
        [1] * 20, n=4, seed=seed, max_new=30, stop_tokens=(2,), logit_bias={1: 50.0, 2: 46.0}
    )
    answers, accepted = [], []
    for lookup in (False, True):
        with Engine(model, lookup=lookup) as engine:
            rows = engine.submit(request).result().completions
            answers.append([(row.tokens, row.finish_reason) for row in rows])
            accepted.append(engine.stats().accepted_tokens)
    assert answers[0] == answers[1]
    assert accepted[0] == 0 < accepted[1]
    assert len({len(tokens) for tokens, _ in answers[0]}) > 2


def test_one_client_cannot_starve_another():
    """Eight choices in every place: a client that comes later has a place at once, and room in the
    queue."""
    engine = Engine(tiny.model("llama"), max_sequences=4, max_queue=8)
    with engine:
        greedy = [
            engine.submit(Request([1, 2, 3], n=8, max_new=50, seed=1, client="a", stop_tokens=()))
        ]
        for _ in range(2):
            while engine.stats().waiting:
                pass
            greedy.append(
                engine.submit(
                    Request([1, 2, 3], n=8, max_new=50, seed=1, client="a", stop_tokens=())
                )
            )
        with pytest.raises(QueueFull):
            engine.submit(Request([1, 2, 3], n=8, max_new=50, client="a"))
        assert ask(engine, [4], max_new=5, client="b", stop_tokens=()).usage.generated == 5
        assert engine.stats().running + engine.stats().waiting >= 2, "the others are not done"
        tokens = [
            [completion.tokens for completion in handle.result().completions] for handle in greedy
        ]
        assert tokens == [tokens[0]] * 3
        with pytest.raises(RequestTooLarge, match="9 continuations never fits in the queue of 8"):
            engine.submit(Request([1], n=9))


@pytest.mark.parametrize("name", ["llama", "strided", "alibi"])
def test_every_value_of_weights_in_half_precision_is_shown(name):
    """Pages hold keys in fp16, and queries may be in fp32 beside them."""
    model = tiny.model(name).half()
    prompt = [*range(3, 40)]
    with Engine(model) as engine:
        handle = engine.submit(Request(prompt, max_new=1, seed=1, want=["*"]))
        handle.result()
    expected = looking.look(model, None, prompt, "*")
    assert handle.records[0].keys() == expected.keys()
    for path, value in expected.items():
        assert torch.allclose(handle.records[0][path].float(), value.float(), 0.05, 0.05), path

"""Whatever one request raises, wherever it does: it ends alone, others get what they get alone, no
page is lost."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections import Counter
from pathlib import Path
from types import FunctionType

import pytest
import torch

import glassformer
import tiny
from glassformer import config, families, nn
from glassformer.core.config import Embed, serial
from glassformer.core.generation.sample import Sampling
from glassformer.core.tokenizer import train
from glassformer.formats import extend
from glassformer.serve.engine import Engine, Request
from glassformer.serve.engine.beam_search import BeamSearch
from glassformer.serve.engine.page_memory import plan_memory
from glassformer.serve.engine.sequence import (
    Channel,
    Encode,
    RequestHandle,
    Sequence,
    SequenceChunk,
)
from pages import check_pages

ROOMS = ["engine", "scheduler", "sequence", "beam_search", "runner", "encoder", "recording"]
PLACES = [importlib.import_module(f"glassformer.serve.engine.{name}") for name in ROOMS]
APART = {
    "_draw",
    "add_request",
    "_map_isolated",
    "_run_batched",
    "_close",
    "_drop",
    "_restart",
    "restart",
    "clear",
    "forget_pages",
    "check",
    "end",
    "end_all",
    "step",
}
"""What keeps requests apart, and what runs when all else failed."""
CROWDS = ("gemma2", "t5", "labels", "gru", "mixer")
NOT_REACHED = {"Worker._plan", "Worker._encode", "Runner.read", "encoder.check_encode"}
NOT_REACHED |= {
    "Scheduler.plan",
    "Scheduler._admit",
    "Scheduler._round_robin",
    "FairQueue.peek",
    "FairQueue.pop",
}
NOT_REACHED |= {"sequence.wake", "sequence._set_ready"}
"""Of no request, or before its first step."""
RARE = {
    "PagePool.drop",
    "FairQueue.remove",
    "Windows._forget",
    "StateRunner.copy",
    "PagePool.knows",
}
RARE |= {"PagedRunner._parts", "PagedRunner._previous", "StateRunner.read"}


class Planted(BaseException):
    """The fault: no ``Exception``, as SystemExit and a panic of a library in Rust are none."""


def functions():
    """Every function and method of a step with where it is."""
    for module in PLACES:
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__:
                continue
            if module.__name__.endswith("recording") and name != "Look":
                continue  # values without a step
            if isinstance(value, FunctionType) and name != "_atomic":
                yield f"{module.__name__.rpartition('.')[2]}.{name}", module, name
            is_step = isinstance(value, type) and value not in (Channel, RequestHandle, Engine)
            methods = vars(value).items() if is_step else ()
            for inner, method in methods:
                plain = isinstance(method, FunctionType) and (
                    inner == "__call__" or not inner.startswith("__")
                )
                if plain and inner not in APART and method.__module__ == module.__name__:
                    yield f"{value.__name__}.{inner}", value, inner


def handle_of(value):
    """The handle of the request that a value belongs to; None of no single one."""
    if isinstance(value, BeamSearch | SequenceChunk | Sequence):
        return value.handle
    return value if isinstance(value, RequestHandle) else None


def handles(args):
    """The requests that a call is for: its arguments say so, or those of whoever calls."""
    frame = sys._getframe(2)
    handles = _handles(args)
    while (
        not handles
        and frame is not None
        and frame.f_code.co_name not in ("step", "run", "_restart")
    ):
        handles, frame = _handles(frame.f_locals.values()), frame.f_back
    return handles


def _handles(values):
    """Handle of the first value that belongs to one request, or the handles of all values in
    lists."""
    single = next((handle for value in values if (handle := handle_of(value)) is not None), None)
    lists = [value for value in values if isinstance(value, list | tuple)]
    several = {
        handle_of(item[0] if isinstance(item, tuple) and item else item)
        for group in lists
        for item in group
    }
    return several - {None} if single is None else {single}


class Fault:
    """Raises in one function for one request: before or after its work, at one call or from that
    one on."""

    def __init__(self, after, skip, always):
        self.after, self.skip, self.always = after, skip, always
        self.calls, self.fired, self.handle = 0, 0, None

    def planted(self, plain):
        @functools.wraps(plain)
        def failing(*args, **kwargs):
            fails = self.handle is not None and self.handle in handles((*args, *kwargs.values()))
            self.calls += fails
            fails = fails and (
                self.calls > self.skip if self.always else self.calls == self.skip + 1
            )
            result = plain(*args, **kwargs) if self.after or not fails else None
            if fails:
                self.fired += 1
                raise Planted
            return result

        return failing


def patch(monkeypatch, place, name, make):
    """Another function wherever this one is known."""
    plain = vars(place)[name]
    for module in [place] if isinstance(place, type) else PLACES:
        if vars(module).get(name) is plain:
            monkeypatch.setattr(module, name, make(plain))


def guide():
    return lambda tokens: torch.ones(40, dtype=torch.bool)


def requests(name):
    """A crowd of every kind; any of them can be the faulty one."""
    warm = Sampling(0.9, top_k=20, repetition_penalty=1.1)
    loop = [1, 2, 3, 4] * 9
    if name == "t5":
        texts = [[3, 1, 4], [3, 1, 4], [9, 2, 6, 5] * 9]
        requests = [Request([1], text, max_new=5, seed=number) for number, text in enumerate(texts)]
        return [
            *requests,
            Request([1], [3, 5, 8], n=2, max_new=4, seed=3),
            Request([1], [2, 2], beams=2, max_new=4, seed=9),
        ]
    if name == "labels":
        return [Encode([5, 6, end, 2], output="labels") for end in range(3, 6)]
    if name == "gru":
        return [
            Request([number, 5, 6], n=2, max_new=5, seed=number, sampling=warm)
            for number in range(3)
        ]
    if name == "mixer":
        return [
            Request([3, 1, 4, 1, 5] * 10, n=2, max_new=5, seed=1, sampling=warm),
            Request([2, 7], max_new=7, seed=2, want=["*.1.resid"]),
            Request([9, 2, 6], max_new=5, seed=3),
        ]
    again = {"max_new": 12, "sampling": Sampling(0), "logit_bias": {1: 30.0}}
    return [
        Request(
            [*loop, 7],
            n=3,
            max_new=6,
            guide=guide,
            sampling=warm,
            seed=1,
            logprobs=2,
            prompt_logprobs=1,
        ),
        Request([*loop, 8], seed=2, stop=["zz"], client="b", **again),
        Request([*loop, 8], seed=3, want=["*.1.resid"], max_new=9, n=2, client="b"),
        Request([*loop, 9, 9], seed=4, beams=3, n=2, max_new=5),
        Encode([5, 6, 7], output="logits"),
        Encode([5, 6, 7, 8], output="hidden"),
        Request([2, 1, 2, 1, 2], seed=5, max_new=0, prompt_logprobs=2),
    ]


@functools.cache
def mixer_model():
    """A decoder of docs/extending.md's token mixer and attention, in turns."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        families.all()  # their types are known on
        members = {slot: dict(types) for slot, types in serial._MEMBERS.items()}
        monkeypatch.setattr(serial, "_MEMBERS", members)
        builders = importlib.import_module("glassformer.core.nn.build")
        monkeypatch.setattr(builders, "_MAKERS", dict(builders.makers()))
        monkeypatch.setattr(extend, "_USED", set())
        glassformer.use(Path(__file__).parents[1] / "own_parts.py")
        mixer = tiny.block(serial.members(config.Mixer)["MinGRU"](24))
        return nn.build_model(tiny.decoder(mixer, tiny.block()), seed=1).eval()


def engine_of(name: str) -> Engine:
    """With windows and few pages, with sources, or of states."""
    if name == "mixer":
        return Engine(mixer_model(), step_tokens=40, max_sequences=3)
    if name == "labels":  # of an encoder-decoder, both of whose sides read the text
        pool = config.Pool("last", "tanh", labels=3, bias=True, eos=2)
        labelled = dataclasses.replace(tiny.ALL["t5"], head=None, pool=pool)
        return Engine(tiny.model(labelled), step_tokens=40, max_sequences=3)
    if name in ("t5", "gru"):
        return Engine(tiny.model(name), step_tokens=40, max_sequences=3)
    model = tiny.model(dataclasses.replace(tiny.ALL["gemma2"], embed=Embed(300)))
    room = plan_memory(model, None, 5, None, 40)
    memory = room.nbytes // 3
    return Engine(model, train("byte", []), step_tokens=40, max_sequences=5, memory=memory)


def answer(handle):
    """The tokens and all numbers that a request was answered; None where it was told of the
    fault."""
    try:
        result = handle.result()
    except RuntimeError as error:
        assert isinstance(error.__cause__, Planted)
        return None
    numbers = [] if result.output is None else result.output.flatten().tolist()
    numbers += [x for completion in result.completions for x in completion.logprobs]
    numbers += [item.logprob for item in result.prompt_logprobs or () if item.logprob is not None]
    return [completion.tokens for completion in result.completions], numbers


def run(name, faulty, fault):
    """The answers to a crowd that came at once, the faulty one last, and that one again without its
    fault."""
    kinds = requests(name)
    with engine_of(name) as engine:
        result = {}
        with engine._work:  # so that all are there at the first step
            for number in sorted(range(len(kinds)), key=lambda number: number == faulty):
                result[number] = engine.submit(kinds[number])
            fault.handle = None if faulty is None else result[faulty]
        answers = [answer(result[number]) for number in range(len(kinds))]
        worker = engine._worker
        fault.handle = None
        answers.append(answer(engine.submit(kinds[faulty or 0])))
        assert engine.alive
        assert not worker.requests
        assert not worker.scheduler.broken
        assert not worker.scheduler.running
        assert not worker.scheduler.suspended
        assert not len(worker.scheduler.waiting)
        check_pages(engine.memory_plan.pool)
        assert engine.memory_plan.pool.in_use == 0
        assert engine.memory_plan.windows is None or engine.memory_plan.windows.pool.in_use == 0
        assert not getattr(worker.runner, "sources", None)
        assert not hasattr(worker.runner, "memories") or not worker.runner.memories
    return answers


@functools.cache
def alone(name):
    """The answers of an engine to each by itself."""
    with engine_of(name) as engine:
        return [answer(engine.submit(request)) for request in requests(name)]


@functools.cache
def reached():
    """For each function the requests of each crowd that it is called for, and how often."""
    calls = Counter[tuple[str, str, RequestHandle]]()
    crowds = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for label, place, name in functions():

            def make(plain, label=label):
                @functools.wraps(plain)
                def counted(*args, **kwargs):
                    for handle in handles((*args, *kwargs.values())):
                        calls[label, crowds[-1][0], handle] += 1
                    return plain(*args, **kwargs)

                return counted

            patch(monkeypatch, place, name, make)
        for crowd in CROWDS:
            with engine_of(crowd) as engine:
                with engine._work:
                    crowds.append((crowd, [engine.submit(request) for request in requests(crowd)]))
                for handle in crowds[-1][1]:
                    answer(handle)
    result = {}
    for label, _, _ in functions():
        result[label] = [
            (crowd, number, calls[label, crowd, handle])
            for crowd, group in crowds
            for number, handle in enumerate(group)
            if calls[label, crowd, handle]
        ]
    return result


def check(label, place, name, case, fault):
    """Others get their answers, the faulty request hears of the fault, and the engine goes on."""
    crowd, number = case
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(monkeypatch, place, name, fault.planted)
        *answers, again = run(crowd, number, fault)
    message = f"{label} of request {number} of {crowd}, {fault.fired} faults"
    expected = alone(crowd)
    for answer, answered in enumerate(answers):
        assert answered is not None or answer == number, f"{message}: it ended request {answer}"
        if answered is not None:
            tokens, numbers = expected[answer]
            assert answered == (tokens, pytest.approx(numbers, abs=1e-4)), message
    tokens, numbers = expected[number]
    assert again == (tokens, pytest.approx(numbers, abs=1e-4)), message
    silent = not fault.fired or not fault.always
    assert answers[number] is None or silent, f"{message}: it was not told"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "label, place, name", [pytest.param(*row, id=row[0]) for row in functions()]
)
def test_a_fault_of_one_request_ends_it_alone(label, place, name, every):
    """For ever before its work, and once after it; with ``every`` in several crowds."""
    cases = reached()[label]
    if label in NOT_REACHED or (label in RARE and not cases):
        return
    assert cases, "no request comes here"
    if not every:
        crowd, number, _ = cases[-1]
        check(label, place, name, (crowd, number), Fault(False, 0, True))
        crowd, number, count = cases[0]
        check(label, place, name, (crowd, number), Fault(True, count // 2, False))
        return
    first = {crowd: (crowd, number, count) for crowd, number, count in reversed(cases)}
    most = max(cases, key=lambda case: case[2])
    for crowd, number, count in {*first.values(), most, cases[-1]}:
        check(label, place, name, (crowd, number), Fault(False, 0, True))
        check(label, place, name, (crowd, number), Fault(True, count // 2, False))

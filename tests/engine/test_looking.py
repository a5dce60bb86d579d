"""What is recorded of a running request is what a look at its text alone shows; others keep their bits."""

from __future__ import annotations

import pytest
import torch

import tiny
from glassformer.engine import Engine, Request
from glassformer.engine.memory import room_for
from glassformer.errors import UserError
from glassformer.generation import generate
from glassformer.generation.sample import Sampling
from glassformer.inspection.edits import head_off
from glassformer.nn import Tape, kernels

PATHS = ["*.resid", "*.pattern", "*.scores", "*.z", "*.hidden", "logits"]
OTHERS = [Request([number, 2, 3, 4, 5] * 3, sampling=Sampling(0), max_new=9) for number in range(4)]


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "mixed"])
def test_a_running_request_is_looked_into(name: str) -> None:
    model = tiny.model(tiny.DECODERS[name])
    prompt = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4] * 4
    with Engine(model, step_tokens=17) as engine:
        alone = [engine.submit(one).result() for one in OTHERS]
        handles = [engine.submit(one) for one in OTHERS[:2]]
        looked = engine.submit(Request(prompt, sampling=Sampling(0), max_new=6, want=PATHS))
        handles += [engine.submit(one) for one in OTHERS[2:]]
        results = [handle.result() for handle in handles]
        tokens = looked.result().completions[0].tokens
    assert [one.completions[0].tokens for one in results] == [one.completions[0].tokens for one in alone]
    bound = 0.0 if name in ("llama", "gemma2") and kernels.path() != "torch" else 2e-5
    for a, b in zip(alone, results, strict=True):
        pairs = zip(a.completions[0].logprobs, b.completions[0].logprobs, strict=True)
        assert max(abs(x - y) for x, y in pairs) <= bound
    tape = Tape(*PATHS)
    with torch.no_grad():
        model(torch.tensor([prompt + tokens[:-1]]), tape=tape)
    records = looked.records[0]
    assert records.keys() == tape.records.keys()
    for path, value in records.items():
        expected = tape.records[path][:, len(prompt) - 1 :] if path == "logits" else tape.records[path]
        assert value.shape == expected.shape, path
        assert torch.allclose(value, expected, atol=1e-4), path


def test_an_edit_is_of_one_request_alone() -> None:
    model, prompt, edit = tiny.model(tiny.DECODERS["llama"]), [3, 1, 4, 1, 5] * 8, head_off("decoder.blocks.0.attn", 1)
    how = {"sampling": Sampling(0), "max_new": 12}
    plain = generate(model, None, prompt, temperature=0, max_new=12).run().tokens[0]
    edited = generate(model, None, prompt, temperature=0, max_new=12, edits=[edit]).run().tokens[0]
    assert plain != edited
    with Engine(model) as engine:
        handles = [engine.submit(Request(prompt, edits=some, **how)) for some in ((), [edit], (), [edit])]  # type: ignore[arg-type]
        found = [handle.result().completions[0].tokens for handle in handles]
        again = engine.submit(Request(prompt, **how)).result()  # type: ignore[arg-type]
    assert found == [plain, edited, plain, edited]
    assert again.completions[0].tokens == plain and again.usage.cached == 32


def test_what_is_not_there_is_refused() -> None:
    with Engine(tiny.model(tiny.DECODERS["llama"])) as engine:
        with pytest.raises(UserError, match="Nothing in this model is called"):
            engine.submit(Request([1], want=["decoder.nothing"]))
        with pytest.raises(UserError):
            engine.submit(Request([1], edits=[head_off("decoder.blocks.9.attn", 1)]))
    with Engine(tiny.model(tiny.ALL["gru"])) as engine, pytest.raises(UserError, match="decoders with attention alone"):
        engine.submit(Request([1], want=["*"]))


def test_what_is_read_again_is_recorded_once() -> None:
    """Texts that lost their pages and were read from the beginning again."""
    model, room = tiny.model(tiny.DECODERS["llama"]), room_for(tiny.model(tiny.DECODERS["llama"]), None, 8, None)
    prompts = [[number, *range(28)] for number in range(6)]
    with Engine(model, memory=room.nbytes // len(room.pool.users) * 5) as engine:
        wanted = [Request(prompt, sampling=Sampling(0), max_new=30, want=["*.1.resid"]) for prompt in prompts]
        handles = [engine.submit(one) for one in wanted]
        for prompt, handle in zip(prompts, handles, strict=True):
            read, tape = [*prompt, *handle.result().completions[0].tokens][:-1], Tape("*.1.resid")
            with torch.no_grad():
                model(torch.tensor([read]), tape=tape)
            found = handle.records[0]["decoder.blocks.1.resid"]
            assert found.shape == (1, len(read), tiny.DIM)
            assert torch.allclose(found, tape["decoder.blocks.1.resid"], atol=1e-4)
        assert engine.stats().preempted

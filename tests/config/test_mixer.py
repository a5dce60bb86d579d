"""A token mixer of a user's own (docs/extending.md) does what attention does, alone and beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import glassformer
import tiny
from folders import sums
from glassformer import config, families
from glassformer.cli import main
from glassformer.core.config import serial
from glassformer.core.generation import beam
from glassformer.core.generation.sample import Sampling
from glassformer.core.nn import Cache, Tape, build_model
from glassformer.core.nn.build import makers
from glassformer.formats import extend
from glassformer.scale import ring
from glassformer.serve.engine import Engine, Request
from glassformer.sight import patch_grid
from mistakes import mistake
from packed import alone, packed
from tiny import block, decoder, tokens, vaswani

OWN = Path(__file__).parents[1] / "own_parts.py"
RUN = """
[model]
dim = 16
context = 24
[model.decoder]
depth = 2
position = "Rotary"
pattern = [
  { attention = { type = "MinGRU", hidden = 24 }, feedforward = { type = "MLP", hidden = 32 } },
  { attention = { heads = 2 }, feedforward = { type = "MLP", hidden = 32 } },
]
[data]
train = "corpus.txt"
tokenizer = "char"
[train]
batch = 2
dtype = "float32"
sample_every = 0
tensorboard = false
save_every = 2
"""


@pytest.fixture(params=["alone", "beside attention", "beside a window"])
def cfg(request, monkeypatch):
    """A decoder whose blocks mix tokens by the page's MinGRU, known while the test runs."""
    families.all()  # their types are known on
    members = {slot: dict(types) for slot, types in serial._MEMBERS.items()}
    monkeypatch.setattr(serial, "_MEMBERS", members)
    monkeypatch.setattr(sys.modules["glassformer.core.nn.build"], "_MAKERS", dict(makers()))
    monkeypatch.setattr(extend, "_USED", set())
    glassformer.use(OWN)
    mixer = block(serial.members(config.Mixer)["MinGRU"](24))
    neighbours = {
        "alone": (),
        "beside attention": (block(config.Attention(4, 2)),),
        "beside a window": (block(config.Attention(2, mask=config.Window(3))),),
    }[request.param]
    return decoder(mixer, *neighbours, position=config.Rotary())


@pytest.fixture
def model(cfg):
    return tiny.model(cfg)


def greedy(model):
    """The answers to each prompt by itself."""
    return [generated(model, prompt, temperature=0)[0] for prompt in PROMPTS]


def served(engine):
    """The engine's greedy answers to all prompts at once."""
    requests = [Request(prompt, max_new=9, sampling=Sampling(0)) for prompt in PROMPTS]
    handles = [engine.submit(request) for request in requests]
    return [[*handle.result().completions[0].tokens] for handle in handles]


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7], [5, 3, 5, 8, 9]]


def generated(model, prompt, new=9, **settings):
    return glassformer.generate(model, None, prompt, max_new=new, **settings).run().tokens


@torch.no_grad()
def test_cached_is_uncached(model):
    plain = model(tokens()).logits
    cache = Cache(model.config)
    pieces = [model(piece, cache=cache).logits for piece in tokens().split([7, 1, 12], 1)]
    assert_close(torch.cat(pieces, 1), plain, rtol=0, atol=1e-5)
    assert cache.evicts


@torch.no_grad()
def test_padded_and_packed_are_alone(model):
    batch = packed(tokens(2, 24), [9, 4, 8])
    rows = model(batch.tokens, pos=batch.pos, document_ids=batch.document_ids).logits
    pieces = iter(alone(batch))
    for row in rows:
        for logits in row[:21].split([9, 4, 8]):
            assert_close(logits, model(next(pieces).tokens).logits[0], rtol=0, atol=1e-5)


def test_batched_is_alone(model):
    assert generated(model, PROMPTS, temperature=0) == greedy(model)
    samples = generated(model, PROMPTS[0], 6, samples=3, seed=5)
    assert samples[:1] == generated(model, PROMPTS[0], 6, seed=5)
    assert len(set(map(tuple, samples))) > 1


def test_a_beam_finds_what_every_text_computed_whole_would(model):
    """Their logprobs are those of whole passes without a cache."""
    [hypotheses] = beam(model, None, [PROMPTS[0]], beams=3, best=3, max_new=5, eos=())
    for hypothesis in hypotheses:
        ids = torch.tensor([PROMPTS[0] + list(hypothesis.tokens)])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        total = logprobs.gather(1, ids[0, 1:, None])[len(PROMPTS[0]) - 1 :].sum()
        assert sum(hypothesis.logprobs) == pytest.approx(float(total), abs=1e-4)


def test_the_engine_says_what_generate_says(model):
    with Engine(model) as engine:
        assert served(engine) == greedy(model)
        searched = engine.submit(Request(PROMPTS[0], max_new=5, stop_tokens=(), beams=3, n=3))
        searched.result()
    [expected] = beam(model, None, [PROMPTS[0]], beams=3, best=3, max_new=5, eos=())
    assert [item.tokens for item in searched.hypotheses] == [item.tokens for item in expected]


def test_the_engine_looks_inside(model):
    with Engine(model) as engine:
        request = Request(PROMPTS[0], max_new=3, sampling=Sampling(0), want=("*.attn.write",))
        handle = engine.submit(request)
        ids = PROMPTS[0] + [*handle.result().completions[0].tokens]
    tape = Tape("*.attn.write")
    with torch.no_grad():
        model(torch.tensor([ids[:-1]]), tape=tape)
    records = handle.records[0]
    assert sorted(records) == sorted(tape.records)
    for path, value in tape.records.items():
        assert_close(records[path].view_as(value), value, rtol=0, atol=1e-5)


def test_a_pass_that_fails_is_computed_again(model):
    with Engine(model) as engine:
        runner = engine._worker.runner
        plain = runner.model.forward
        calls = []

        def fail(*args, **kwargs):
            calls.append(args)
            if len(calls) == 9:  # after others of its batch were computed
                raise MemoryError
            return plain(*args, **kwargs)

        runner.model.forward = fail
        answers = served(engine)
    assert len(calls) > 9
    assert answers == greedy(model)


def test_trained_resumed_saved_loaded_generated_and_priced(cfg, tmp_path, monkeypatch, terminal):
    monkeypatch.chdir(tmp_path)
    text = sums(80)
    Path("corpus.txt").write_text(text)
    Path("run.toml").write_text(RUN)
    terminal("train run.toml --out whole --steps 4")
    terminal("train run.toml --out parts --steps 2")
    assert main(["train", "run.toml", "--out", "parts", "--steps", "4", "--resume"]) in (0, 2)
    model, tokenizer = glassformer.load("whole")
    glassformer.save(model, "copy", tokenizer)
    again, _ = glassformer.load("copy")
    ids = torch.arange(12)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)
    terminal("generate whole '1 and' --max-new 6 --temperature 0")
    terminal("cost whole")
    for verb in ("look", "why"):
        assert "decoder.blocks.0.attn" in terminal(f"{verb} whole '1 and 2'")
    with mistake("No published layout holds MinGRU"):
        glassformer.save(model, "hf", layout="hf")


def test_what_needs_attention_refuses_it_in_a_sentence(cfg):
    mixer = cfg.decoder.pattern[0].attention
    with mistake(r"Block\.cross is a MinGRU; only Attention"):
        config.Block(config.Attention(2), config.MLP(8), cross=mixer)
    with mistake(r"MinGRU reads a row from one end to the other"):
        ring.check(cfg)
    with mistake(r"give it a causal stack"):
        build_model(serial.change(vaswani(), {"encoder.pattern": (block(mixer),)}))


def test_patching_its_stream_gives_the_other_answer(model):
    """It needs no keys and values."""
    grid = patch_grid(model, None, [1, 2, 3], [1, 5, 3], answer=7, wrong=3)
    (stream,) = (part for part in grid.parts if part.name == "resid")
    assert stream.effect[-1][-1] == pytest.approx(1, abs=1e-4)
    assert stream.effect[0][0] == pytest.approx(0, abs=1e-6)

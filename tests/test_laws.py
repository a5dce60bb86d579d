"""The laws every family obeys: JSON, cache, padding, packing, tape, engines, overfitting."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import Linear
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.config import serial
from glassformer.core.config.objective import LoRA
from glassformer.core.nn import (
    Cache,
    Decoder,
    EncoderDecoder,
    Mask,
    Tape,
    build,
    build_model,
    makers,
)
from glassformer.families.disentangled import RelativeEmbedding
from glassformer.families.mechanisms import LearnedWithBias
from glassformer.families.sinks import SinkAttention
from glassformer.fast import cpu_blocks
from glassformer.formats import store, tuning
from glassformer.scale.cost import cost
from glassformer.sight.layouts import DocumentReader, Documents
from mistakes import mistake
from tiny import DECODERS, SINKS, tokens

ALL = tiny.ALL | SINKS
PAIRS = [name for name, config in ALL.items() if isinstance(config, c.EncoderDecoder)]
CLOSE = {"rtol": 0.0, "atol": 1e-5}  # of logits with a spread of several units


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def forward(model, inputs, **kwargs):
    if isinstance(model, EncoderDecoder):
        return model(inputs, tokens(inputs.shape[0], 9, seed=5), **kwargs).logits
    return model(inputs, **kwargs).logits


def near(remaining, right):
    assert_close(remaining, right, **CLOSE)


every_family = pytest.mark.parametrize("name", ALL)


@every_family
def test_survives_json(name):
    text = serial.dumps(ALL[name])
    assert serial.loads(c.Model, text) == ALL[name]
    assert json.loads(text)["type"] == type(ALL[name]).__name__


@every_family
def test_same_seed_same_weights_and_no_memory_on_meta(name):
    item, two, second = (build_model(ALL[name], seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(item[key], two[key]) for key in item)
    assert any(not torch.equal(item[key], second[key]) for key in item)
    meta = build_model(ALL[name], device="meta")
    assert {key: value.shape for key, value in meta.state_dict().items()} == {
        key: v.shape for key, v in item.items()
    }


LAYERS = (".q", ".up", ".state", ".transform", ".in_proj")  # a family has some of them


@every_family
def test_saved_loaded_counted_and_adapted(name, tmp_path):
    model = tiny.model(name)
    second_tokens = tokens()
    store.save(model, tmp_path / name, layout="glassformer")
    back, _ = store.load(tmp_path / name)
    reference = dict(back.named_parameters())
    assert back.config == ALL[name]
    assert all(torch.equal(w, reference[path]) for path, w in model.named_parameters())
    assert cost(ALL[name]).total == sum(weight.numel() for weight in model.parameters())
    paths = tuple(
        n for n, m in back.named_modules() if n.endswith(LAYERS) and isinstance(m, Linear)
    )
    tuning.tune(back, LoRA(rank=2, target_modules=paths))
    near(forward(back, second_tokens), forward(model, second_tokens))


ENDS = {  # without logits over words
    "tagger": replace(tiny.bert(), head=None, pool=None, token_head=c.TokenHead(3, "gelu", 0.1)),
    "narrow": replace(
        tiny.bert(),
        head=None,
        embed=c.Embed(tiny.VOCAB, segments=2, dim=20),
        token_head=c.TokenHead(2),
    ),
    "causal tagger": replace(DECODERS["llama"], head=None, token_head=c.TokenHead(2, span=True)),
    "vectors": replace(DECODERS["llama"], head=None, pool=c.Pool("last", normalize=True)),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_without_words_keep_the_laws(name, tmp_path):
    cfg = ENDS[name]
    second_tokens = tokens()
    model = tiny.model(cfg)
    full_model = model(second_tokens)
    bounds = [x for x in (full_model.tagged, full_model.pooled) if x is not None]
    assert full_model.logits.numel() == 0
    assert bounds
    if full_model.tagged is not None:
        assert full_model.tagged.shape == (3, 20, cfg.token_head.labels)
    tape = Tape("*")
    again = model(second_tokens, tape=tape)
    near(tape["token_head.write" if full_model.tagged is not None else "pool.write"], bounds[0])
    assert torch.equal((again.pooled if full_model.tagged is None else again.tagged), bounds[0])
    for layout in ("left", "right", "packed"):
        compare_layout(model, layout, 1e-5)
    assert serial.loads(c.Model, serial.dumps(cfg)) == cfg
    assert cost(cfg).total == sum(weight.numel() for weight in model.parameters())
    store.save(model, tmp_path / "m", layout="glassformer")
    back, _ = store.load(tmp_path / "m")
    assert back.config == cfg
    assert torch.equal(back(second_tokens).hidden, full_model.hidden)
    model.engine = "eager"
    near(model(second_tokens).hidden, full_model.hidden)


def test_every_config_type_is_used_by_a_family():
    text = " ".join(serial.dumps(config) for config in (*ALL.values(), *ENDS.values()))
    observed = set(re.findall(r'"type": *"(\w+)"', text))
    assert {kind.__name__ for kind in makers()} - observed == {"LinearScaling"}, (
        "add a family that uses it to tiny.py"
    )


CANNOT = {
    "block_sparse": {"bias", "sinks"},
    "cpu_blocks": {"bias", "softcap", "sinks"},
    "sdpa": {"softcap", "sinks"},
}


BIASES = (c.RelativeBias, c.Alibi, LearnedWithBias, RelativeEmbedding)


def needs(cfg):
    """Requirements of each attention layer beside a mask."""
    results = []
    for stack in cfg.stacks.values():
        for block in stack.pattern:
            if not isinstance(block.attention, c.Attention):
                continue
            position = block.position or stack.position
            biased = {"bias"} if isinstance(position, BIASES) else set()
            sinks = {"sinks"} if isinstance(block.attention, SinkAttention) else set()
            results.append(biased | sinks | ({"softcap"} if block.attention.softcap else set()))
            if block.cross is not None:
                results.append({"softcap"} if block.cross.softcap else set())
    return results


@every_family
@pytest.mark.parametrize("engine", CANNOT)
def test_every_engine_equals_eager(name, engine, monkeypatch, chosen):
    """An engine that cannot compute a layer leaves it to another: such a row tests the other layers
    alone."""
    monkeypatch.setattr(cpu_blocks, "BLOCK", 8)  # so that 20 tokens are several blocks
    layers = needs(ALL[name])
    if all(layer & CANNOT[engine] for layer in layers):
        pytest.skip(f"no layer that {engine} can compute: it would test another engine")
    model = tiny.model(name)
    model.engine = engine
    output = forward(model, tokens())
    fallback = {
        "eager" if "softcap" in layer else "sdpa" for layer in layers if layer & CANNOT[engine]
    }
    assert set(chosen) == {engine} | fallback
    assert output.std() > 0.3, "weights too small for this test to see anything"
    model.engine = "eager"
    near(output, forward(model, tokens()))


def in_parts(documents, prefix):
    """Each document through a cache: 7, 1, 1 and 6 tokens, then token by token; a prefix is read in
    one go."""

    def cut(length):
        cut_points = [end for end in (7, 8, 9, 15) if prefix <= end < length] or [prefix]
        borders = [0, *cut_points, *range(cut_points[-1] + 1, length + 1)]
        return [end - start for start, end in pairwise(borders)]

    return documents.chunked(cut, 0, 1, 2)


CACHED = {
    "one pass": lambda documents, _: documents.chunked(lambda length: [length], 0, 1, 2),
    "parts": in_parts,
    "left, then tokens": lambda documents, _: documents.generated("left", 6),
    "right, then tokens": lambda documents, _: documents.generated("right", 6),
}
LAYOUTS = {
    "left": lambda documents, _: documents.padded("left"),
    "right": lambda documents, _: documents.padded("right"),
    "packed": lambda documents, _: documents.packed(),
    **CACHED,
}


def compare_layout(model, layout, tolerance):
    """Documents read in a layout beside each by itself (sight/layouts.py)."""
    cfg = model.config
    lengths = (9, 13, 20)
    prefix = Cache(cfg).prefix_length if layout in CACHED else 0
    texts, sources = (
        [row[:length] for row, length in zip(tokens(seed=seed), sizes, strict=True)]
        for seed, sizes in ((0, lengths), (7, (4, 9, 20)))
    )
    documents = Documents(texts, sources if isinstance(model, EncoderDecoder) else None)
    reader = DocumentReader(model, documents)
    results = reader.read(LAYOUTS[layout](documents, prefix))
    for result, alone in zip(results, reader.read(documents.alone(0, 1, 2)), strict=True):
        assert result.keys() == alone.keys() - ({"pool.write"} if layout in CACHED else set())
        for path in result:
            assert result[path].isfinite().all()
            assert_close(result[path], alone[path], rtol=0.0, atol=tolerance)


@every_family
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_alone(name, layout):
    if layout not in CACHED or name in DECODERS or name in PAIRS:
        compare_layout(tiny.model(name), layout, 1e-5)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_source_equals_alone_beyond_rounding(name, side):
    """With weights so large that fp32 rounds past 1e-5, float64 shows that nothing but rounding
    differs."""
    model = tiny.model(replace(ALL[name], init=c.Init(0.2, 0.3, "plain"))).double()
    compare_layout(model, side, 1e-12)


def test_a_window_keeps_only_the_window():
    model = tiny.model("starcoder2")
    cache = Cache(model.config)
    for piece in tokens(1, 60).split(1, dim=1):
        model(piece, cache=cache)
    assert all(kv.k.shape[2] == 7 + 1 for kv, _ in cache.layers)  # the ring and its bin


def test_a_token_is_written_in_place():
    model = tiny.model("llama")
    cache = Cache(model.config)
    moved = 0
    last = None
    for piece in tokens(1, 60).split(1, dim=1):
        model(piece, cache=cache)
        moved += cache.layers[0][0].k.data_ptr() != last
        last = cache.layers[0][0].k.data_ptr()
    assert moved == 1


@every_family
def test_a_tape_changes_nothing(name):
    model = tiny.model(name)
    plain = forward(model, tokens())
    tape = Tape("*")
    assert torch.equal(forward(model, tokens(), tape=tape), plain)
    place = "decoder" if hasattr(model, "decoder") else "encoder"
    if place in model.config.stacks and name not in tiny.STATES:
        heads = model.config.stacks[place].pattern[0].attention.heads
        pattern = tape[f"{place}.blocks.1.attn.pattern"]
        assert pattern.shape == (3, heads, 20, 20)
        if isinstance(model.config.stacks[place].blocks[1].attention, SinkAttention):
            assert (pattern.sum(-1) < 1).all()
        else:
            assert_close(pattern.sum(-1), torch.ones(3, heads, 20))
    assert torch.equal(tape["logits"], plain)
    near(forward(model, tokens(), tape=Tape(edits={"*.pattern": lambda path, x: x})), plain)
    near(
        forward(model, tokens(), tape=Tape("*.cross.*", edits={"*.state": lambda path, x: x})),
        plain,
    )
    assert torch.equal(
        forward(model, tokens(), tape=Tape(edits={"*.resid": lambda path, x: x})), plain
    )


def test_an_edit_changes_what_flows():
    model = tiny.model("llama")
    silenced = Tape(
        "*.attn.write", edits={"*.blocks.0.attn.write": lambda path, x: torch.zeros_like(x)}
    )
    changed = model(tokens(), tape=silenced).logits
    assert not torch.allclose(changed, model(tokens()).logits, atol=1e-2)
    assert silenced["decoder.blocks.0.attn.write"].abs().max() == 0


def test_a_tape_draws_no_random_numbers():
    model = build_model(tiny.with_dropout(DECODERS["gpt2"], 0.3), seed=1).train()
    torch.manual_seed(3)
    plain = model(tokens()).logits
    torch.manual_seed(3)
    assert torch.equal(model(tokens(), tape=Tape("*.pattern")).logits, plain)


@every_family
def test_last_and_none(name):
    model = tiny.model(name)
    output = forward(model, tokens())
    near(forward(model, tokens(), logits="last")[:, 0], output[:, -1])
    assert forward(model, tokens(), logits="none").numel() == 0


@every_family
def test_overfits_one_batch(name):
    torch.manual_seed(0)
    model = build_model(ALL[name], seed=1).train()
    second_tokens = tokens(2, 12)
    target = second_tokens.roll(-1, 1)
    with torch.enable_grad():
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(150):
            loss = torch.nn.functional.cross_entropy(
                forward(model, second_tokens).flatten(0, 1), target.flatten()
            )
            if loss < 0.1:
                return
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    raise AssertionError(loss)


def test_every_parameter_of_every_family_gets_a_gradient():
    for name, config in ALL.items():
        model = build_model(config, seed=1)
        with torch.enable_grad():
            out = (
                model(tokens(), tokens(3, 9))
                if isinstance(model, EncoderDecoder)
                else model(tokens())
            )
            pooled = torch.zeros(()) if out.pooled is None else out.pooled.float().square().sum()
            (
                out.logits.float().logsumexp(-1).sum()
                + pooled
                + sum(out.aux.values(), torch.zeros(()))
            ).backward()
        # a correction chooses experts and weighs none: a rule moves it, no gradient; ESM's
        # frequencies are stored and not learnt; LED's first block has projections of global tokens
        # and none to project
        lost = [
            path
            for path, weight in model.named_parameters()
            if weight.grad is None
            and not path.endswith(("ffn.correction", "position.inv_freq"))
            and not re.match(r"encoder\.blocks\.0\.attn\.[qkv]_global", path)
        ]
        assert not lost, (name, lost)


def test_fast_paths_are_taken_only_when_legal():
    def fast(queries, keys, **kwargs):
        pos = torch.arange(keys)[None]
        return Mask(
            pos[:, keys - queries :], pos, **{"causal": True, "contiguous": True, **kwargs}
        ).fast_path

    assert fast(8, 8) == "causal"
    assert fast(1, 8) == "full"
    assert fast(3, 8) is None
    assert fast(8, 8, causal=False) == "full"
    assert fast(8, 8, rule=c.Window(8)) == "causal"
    assert fast(8, 8, rule=c.Window(7)) is None
    assert fast(1, 8, rule=c.Window(7)) is None
    assert fast(8, 8, contiguous=False) is None


def test_wrong_tokens_are_refused():
    model = tiny.model("gpt2")
    assert isinstance(model, Decoder)
    with mistake("positions"):
        model(tokens(1, tiny.CONTEXT + 1))
    with mistake("integers"):
        model(torch.zeros(1, 4))
    with mistake("integers"):
        model(torch.zeros(4, dtype=torch.long))
    with mistake("source"):
        tiny.model("t5")(tokens())


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_and_its_gradient_equal_torch(offset):
    norm = build(c.RMSNorm(1e-5, offset), 16)
    values = torch.randn(3, 5, 16)
    torch.nn.init.uniform_(norm.weight)
    results = []
    with torch.enable_grad():
        for individual in (True, False):
            x = values.clone().requires_grad_()
            gain = norm.weight + offset
            y = norm(x) if individual else torch.nn.functional.rms_norm(x, (16,), gain, 1e-5)
            weigh = torch.linspace(-1, 1, y.numel()).view_as(y)
            results.append([y, *torch.autograd.grad((y * weigh).sum(), (x, norm.weight))])
    for result, right in zip(*results, strict=True):
        assert_close(result, right, rtol=1e-5, atol=1e-5)

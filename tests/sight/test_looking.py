"""Values that ``look`` gives (``seen``) are those the model computed; it changes nothing and knows
every name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import describe, look, paths, summarise, to_dict
from mistakes import mistake

VOCAB, CONTEXT = 300, 12
BLOCK = c.Block(c.Attention(4, kv_heads=2), c.GatedMLP(32))


def decoder(block=BLOCK, position=None):
    stack = c.Stack(2, (block,), position or c.Rotary(), last_norm=c.RMSNorm(), dropout=0.2)
    return build_model(c.Decoder(32, CONTEXT, c.Embed(VOCAB), stack, init=c.Init(std=0.2)), seed=1)


def test_the_values_are_the_models_own():
    model, tokens = decoder().train(), torch.tensor([[5, 6, 7], [1, 2, 3]])
    observed = look(model, None, tokens)
    assert model.training
    model.eval()
    with torch.no_grad():
        assert_close(observed["logits"], model(tokens).logits, rtol=0, atol=0)
        assert_close(
            model.head(observed["decoder.out"], model.embed), observed["logits"], rtol=0, atol=0
        )
    pattern = observed["decoder.blocks.1.attn.pattern"]
    assert_close(pattern.sum(-1), torch.ones(2, 4, 3))
    assert (pattern.triu(1) == 0).all()
    z = pattern @ observed["decoder.blocks.1.attn.v"].repeat_interleave(2, 1)
    assert_close(z, observed["decoder.blocks.1.attn.z"])
    assert not any(value.requires_grad for value in observed.values())


def test_patterns_choose_and_the_order_is_the_models():
    model = decoder()
    observed = look(model, None, [5, 6, 7], "*.write", "decoder.blocks.0.attn.q")
    assert list(observed) == [
        "decoder.blocks.0.attn.q",
        *(f"decoder.blocks.{i}.{name}.write" for i in range(2) for name in ("attn", "ffn")),
    ]
    assert list(look(model, None, [5])) == paths(model)


EXPERTS = replace(BLOCK, feedforward=c.MoE(4, 2, c.GatedMLP(16)))


@pytest.mark.parametrize("block", [BLOCK, EXPERTS, replace(BLOCK, place="parallel")])
@pytest.mark.parametrize("position", [c.Learned(CONTEXT), c.Alibi(), c.RelativeBias(4, 8)])
def test_every_name_is_there_in_every_kind(block, position):
    names = paths(decoder(block, position))
    for leaf in ("q", "k", "v", "scores", "pattern", "z", "write"):
        assert f"decoder.blocks.1.attn.{leaf}" in names
    for leaf in (
        ("router", "chosen", "weight")
        if isinstance(block.feedforward, c.MoE)
        else ("hidden", "write")
    ):
        assert f"decoder.blocks.0.ffn.{leaf}" in names
    assert {"decoder.embed", "decoder.out", "decoder.blocks.0.resid", "logits"} <= set(names)


def test_text_is_read_as_generation_reads_it():
    model, tokenizer = decoder(), train_tokenizer("byte", specials=("<s>", "</s>"))
    observed = look(model, tokenizer, "abc", "logits")
    ids = [tokenizer.bos, *b"abc"]
    assert_close(observed["logits"], look(model, None, ids, "logits")["logits"], rtol=0, atol=0)
    plain = look(model, train_tokenizer("byte"), "abc", "logits")
    assert_close(
        plain["logits"], look(model, None, list(b"abc"), "logits")["logits"], rtol=0, atol=0
    )


def test_an_encoder_and_an_encoder_decoder_can_be_looked_at():
    stack = c.Stack(1, (BLOCK,), c.RelativeBias(4, 8), causal=False)
    tokenizer = train_tokenizer("byte", specials=("<s>", "</s>"))
    encoder = build_model(c.Encoder(32, CONTEXT, c.Embed(VOCAB), stack), seed=1)
    assert look(encoder, tokenizer, "abc", "encoder.out")["encoder.out"].shape == (1, 5, 32)
    across = c.Stack(1, (replace(BLOCK, cross=BLOCK.attention),), c.RelativeBias(4, 8))
    model = build_model(c.EncoderDecoder(32, CONTEXT, c.Embed(VOCAB), stack, across), seed=1)
    observed = look(model, tokenizer, "ab", "*.pattern", source="abcde")
    shapes = {path: tuple(value.shape) for path, value in observed.items()}
    assert shapes == {
        "encoder.blocks.0.attn.pattern": (1, 4, 6, 6),
        "decoder.blocks.0.attn.pattern": (1, 4, 3, 3),
        "decoder.blocks.0.cross.pattern": (1, 4, 3, 6),
    }
    assert "decoder.blocks.0.cross.q" in paths(model)
    with mistake("as source"):
        look(model, tokenizer, "ab")
    with mistake("Only an encoder-decoder"):
        look(decoder(), tokenizer, "ab", source="ab")


@pytest.mark.parametrize(
    ("prompt", "pattern", "words"),
    [
        ([1], "*.patern", r'"\*\.patern"\. Did you mean "\*\.pattern"'),
        ([1], "decoder.blocks.2.attn.q", 'Did you mean "decoder.blocks.[01].attn.q"'),
        (
            [1],
            "zzz",
            r"called \"zzz\"\. There are: embed\.token, "
            r".*decoder\.blocks\.\*\.attn\.\{in,qkv,q,k,v,.*\}, .*logits\.$",
        ),
        ([], "*", "empty"),
        ([VOCAB], "*", "out of range"),
        ([-1], "*", "out of range"),
        ([1] * 13, "*", "13 tokens and the model's context is 12"),
        ("text", "*", "needs a tokenizer"),
    ],
)
def test_one_clear_sentence(prompt, pattern, words):
    with mistake(words):
        look(decoder(), None, prompt, pattern)


def test_the_description_holds_the_numbers():
    values = {
        "a.b": torch.tensor([[1.0, -2.0, float("-inf")]]),
        "chosen": torch.tensor([3, 1]),
        "none": torch.ones(0),
    }
    first, chosen, none = json.loads(json.dumps(summarise(values), allow_nan=False))
    assert first == {
        "path": "a.b",
        "shape": [1, 3],
        "dtype": "float32",
        "mean": -0.5,
        "std": 1.5,
        "min": -2.0,
        "max": 1.0,
        "infinite": 1,
        "first": [1.0, -2.0, None],
    }
    assert (chosen["mean"], chosen["dtype"], none["mean"], none["first"]) == (
        2.0,
        "int64",
        None,
        [],
    )
    table = describe(values)
    assert len(table) == 4 and table[0].split()[:2] == ["path", "shape"]
    assert table[1].split() == ["a.b", "1x3", "-0.5", "1.5", "-2", "1", "1", "-2", "-"]
    assert to_dict(values)["a.b"] == {
        "shape": [1, 3],
        "dtype": "float32",
        "values": [[1.0, -2.0, None]],
    }

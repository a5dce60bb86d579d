"""Parts of a model, each held to its definition or to transformers where the tiny families of one
format would not show a slip: norms, how weights start, ends, dropout, losses of several
mixtures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.config import objective as objectives
from glassformer.core.nn import EncoderDecoder, Flow, Tape, build, build_model
from glassformer.core.nn.layers import Linear
from glassformer.formats import tuning
from tiny import DECODERS, tokens

HALF = 2**-8  # the most that one rounding to bf16 changes a number by, relative to it


# ----------------------------------------------------------------------------------------- norms


@pytest.mark.parametrize(
    "cfg", [c.LayerNorm(), c.RMSNorm(), c.RMSNorm(offset=1.0), c.RMSNorm(gain=False)], ids=str
)
def test_a_norm_starts_with_a_gain_of_one(cfg):
    body = tiny.decoder(tiny.block(norm=cfg), position=c.NoPosition(), last_norm=cfg)
    x = torch.randn(5, tiny.DIM)
    # before and after ``Init``
    for norm in (build(cfg, tiny.DIM), build_model(body, seed=1).decoder.last_norm):
        assert_close(norm(x).square().mean(-1), torch.ones(5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("learning", [True, False])
def test_an_rms_norm_adds_up_in_fp32(learning):
    """In bf16 each number is rounded twice: its row's factor, and the product."""
    x = (torch.randn(512, 768) * torch.rand(512, 1).exp()).bfloat16().requires_grad_(learning)
    result = build(c.RMSNorm(eps=0.1), 768).bfloat16()(x).detach().double()
    exact = x.detach().double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 0.1).sqrt()
    assert float(((result - exact) / exact).abs().nan_to_num().max()) <= 2 * HALF * (1 + HALF)


# -------------------------------------------------------------------------------- how weights start


def spread(weight):
    return float(weight.detach().square().mean().sqrt())


def test_an_rms_norm_has_torchs_gradient():
    norm = build(c.RMSNorm(), 8).double()
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, 8, dtype=torch.float64)
    results = norm(x), torch.nn.functional.rms_norm(x, (8,), norm.weight, norm.eps)
    result, expected = (torch.autograd.grad((y * weights).sum(), x)[0] for y in results)
    torch.testing.assert_close(result, expected)


def test_what_writes_to_the_stream_starts_smaller_the_deeper_the_model():
    """By 1 / sqrt(sublayers), an encoder-decoder's of both stacks and with those that look
    across."""
    attention = c.Attention(4)
    think = c.MLP(256)
    encoder = c.Stack(2, (c.Block(attention, think),), causal=False)
    decoder = c.Stack(3, (c.Block(attention, think, cross=attention),))
    init = c.Init(0.02, 0.02, "depth")
    model = build_model(
        c.EncoderDecoder(128, 64, c.Embed(50), encoder, decoder, c.Head(), init), seed=1
    )
    block = model.decoder.blocks[0]
    for writer in (
        block.attn.out,
        block.cross.out,
        block.ffn.down,
        model.encoder.blocks[1].ffn.down,
    ):
        assert spread(writer.weight) == pytest.approx(0.02 / math.sqrt(3 * 3 + 2 * 2), rel=0.05)
    assert spread(block.ffn.up.weight) == pytest.approx(0.02, rel=0.05)


def test_previous_tokens_start_quieter_the_further_back():
    shape = replace(
        DECODERS["glass"],
        dim=64,
        embed=c.Embed(400, previous_token_embeddings=3),
        init=c.Init(0.02, 0.3),
    )
    embed = build_model(shape, seed=1).embed
    for table, expected in zip(
        (embed.token, *embed.lag), (0.3, 0.3 / 2, 0.3 / 3, 0.3 / 4), strict=True
    ):
        assert spread(table.weight) == pytest.approx(expected, rel=0.05)


# ------------------------------------------------------------------------------- ends, dropout,
# losses


def test_a_heads_scale_multiplies_what_it_reads():
    plain = tiny.model("llama")
    scaled = tiny.model(replace(DECODERS["llama"], head=c.Head(tied=False, scale=0.25)))
    assert_close(scaled(tokens()).logits, plain(tokens()).logits / 4)


def dropped(result, plain, rate):
    """Each number stayed, divided by 1 - rate, or fell out: in its share."""
    alive = result != 0
    assert_close(result, torch.where(alive, plain / (1 - rate), 0.0), rtol=1e-5, atol=1e-6)
    assert (
        abs(float(alive.double().mean()) - (1 - rate))
        < 5 * (rate * (1 - rate) / alive.numel()) ** 0.5
    )


@torch.no_grad()
def test_a_classifier_drops_what_its_labels_read():
    pool = build(c.Pool("mean", labels=32, dropout=0.4), 32)
    pool.proj.weight.copy_(torch.eye(32))
    pool.proj.bias.zero_()
    hidden = torch.randn(200, 3, 32)
    flow = Flow(torch.arange(3)[None])
    plain = pool.eval()(hidden, flow)
    assert_close(plain, hidden.mean(1))
    dropped(pool.train()(hidden, flow), plain, 0.4)


@torch.no_grad()
def test_lora_drops_what_its_change_reads_and_nothing_of_the_matrix():
    of = Linear(32, 32, bias=False)
    of.weight.zero_()
    layer = tuning.LoRALinear(of, 32, 0.5, dropout=0.3)
    x = torch.randn(200, 32)
    layer.down.copy_(torch.eye(32))
    layer.up.copy_(torch.eye(32))
    assert_close(layer.eval()(x), x / 2)
    dropped(layer.train()(x), x / 2, 0.3)
    layer.up.zero_()
    of.weight.copy_(torch.eye(32))
    assert torch.equal(layer(x), x)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_tuning_drops_at_the_rate_that_it_was_told(name):
    model = build_model(tiny.ALL[name], seed=1)
    tuning.tune(model, objectives.LoRA(rank=3, dropout=0.35))
    assert {layer.drop.p for layer in tuning.adapted(model).values()} == {0.35}


@torch.no_grad()
def test_a_change_is_merged_with_one_rounding():
    torch.manual_seed(0)
    of = Linear(96, 64, bias=False).bfloat16()
    of.weight.normal_()
    layer = tuning.LoRALinear(of, 24, 0.7)
    layer.down.normal_()
    layer.up.normal_()
    exact = layer.weight.double() + 0.7 * layer.up.double() @ layer.down.double()
    layer.merge()
    off = (layer.weight.double() - exact).abs()
    # and sums in fp32
    assert float((off - HALF * exact.abs()).max()) <= 2**-20 * float(exact.abs().max())


def test_every_mixture_adds_to_the_losses():
    for name, count in (("mixtral", 2), ("noisy", 2)):
        model = build_model(DECODERS[name], seed=1)
        tape = Tape("*.router")
        aux = model(tokens(), tape=tape).aux
        cfg = DECODERS[name].decoder.pattern[0].feedforward
        alone = 0.0
        logits = [tape[path] for path in tape.records]
        assert len(logits) == count
        for router in logits:
            share = router.softmax(-1).flatten(0, 1)
            chosen = share.topk(cfg.top_k, -1).indices
            load = torch.bincount(chosen.flatten(), minlength=cfg.experts) / chosen.numel()
            alone += float(cfg.balance_loss * cfg.experts * (load * share.mean(0)).sum())
        assert float(aux["balance"].detach()) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("name", ["llama", "t5", "bahdanau"])
def test_a_tape_keeps_no_graph_unless_it_is_asked_to(name):
    model = tiny.model(name)
    extra = (tokens(3, 9, seed=5),) if isinstance(model, EncoderDecoder) else ()
    for graph in (False, True):
        tape = Tape("*", graph=graph)
        model(tokens(), *extra, tape=tape)
        flags = [
            value.requires_grad for value in tape.records.values() if value.is_floating_point()
        ]
        assert flags
        assert all(flags) if graph and name == "llama" else any(flags) == graph

"""Token mixers with a state: chunks side by side are steps one by one, and a document begins anew;
attention by the difference of two patterns is its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import tiny
from families import rwkv7
from folders import read_json
from glassformer import config as c
from glassformer import generate
from glassformer.core.config import serial
from glassformer.core.nn import Cache, build_model
from glassformer.core.nn.flow import Flow
from glassformer.core.nn.layers import GatedMLP
from glassformer.families.gated_expert import GatedExpert
from glassformer.families.mechanisms import LoopedStack
from glassformer.families.mixers import (
    ChannelMix,
    ChannelMix7,
    DifferentialAttention,
    GatedDelta,
    Mamba2,
    ShortConv,
    TimeMix,
    TimeMix7,
)
from glassformer.families.modules.delta import GatedDeltaModule
from glassformer.families.modules.differential import DifferentialAttentionModule
from glassformer.families.modules.gated_expert import GatedExpertModule
from glassformer.families.modules.rwkv import (
    ChannelMix7Module,
    ChannelMixModule,
    TimeMix7Module,
    TimeMixModule,
    forgetting_mean,
)
from glassformer.families.modules.scan import CausalConv, scan
from glassformer.families.modules.short_conv import ShortConvModule
from glassformer.families.modules.ssm import Mamba2Module
from glassformer.runs.run_file import read_run
from glassformer.runs.run_plan import plan_run
from glassformer.scale import cost
from glassformer.serve.engine import Engine, Request
from mistakes import mistake
from seeding import generator_from

# two documents with padding between and behind, the second longer than two chunks
POS = torch.tensor([[*range(70), -1, -1, *range(150), -1], [-1] * 60 + [*range(163)]])
MODULES = {
    ShortConv(4, True): ShortConvModule,
    Mamba2(6, 16, 8, 2): Mamba2Module,
    GatedDelta(2, 4, 8, 6): GatedDeltaModule,
    TimeMix(24): TimeMixModule,
    ChannelMix(48): ChannelMixModule,
    TimeMix7(3, 8, 5, 7): TimeMix7Module,
    ChannelMix7(48): ChannelMix7Module,
}
MIXERS = [*MODULES]


def drawn(*shape):
    return torch.randn(shape, generator=generator_from(sum(shape))).double()


def step_by_step(q, k, v, decay, pos, removal):
    """The rule of ``scan`` as it is written, one token of one head after another."""
    output = torch.zeros(*q.shape[:3], v.shape[-1]).double()
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            state = torch.zeros(k.shape[-1], v.shape[-1]).double()
            for t, place in enumerate(pos[row]):
                if place < 0:
                    continue
                key, value = k[row, head, t], v[row, head, t]
                retention = decay[row, head, t].exp().expand(len(key))
                state = retention[:, None] * state * (place != 0)
                if removal is not None:
                    value = value - removal[row, head, t] @ state
                state = state + key[:, None] * value
                output[row, head, t] = q[row, head, t] @ state
    return output


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_a_scan_is_its_rule(learns, channels):
    """In whole, and in pieces of any length that hand the state on."""
    length = POS.shape[1]
    q, k, v = drawn(2, 3, length, 5), drawn(2, 3, length, 6)[..., :5], drawn(2, 3, length, 4)
    k = k / k.norm(dim=-1, keepdim=True)
    decay = -(drawn(2, 3, length, 5).sigmoid() if channels else drawn(2, 3, length).square())
    removal = k * drawn(2, 3, length, 1).sigmoid() if learns else None
    expected, real = step_by_step(q, k, v, decay, POS, removal), (POS >= 0)[:, None, :, None]
    for sizes in ([length], [3, 1, 100, 64, length - 168]):
        state, pieces = None, []
        chunks = [x.split(sizes, 2) for x in (q, k, v, decay)]
        removals = [None] * len(sizes) if removal is None else removal.split(sizes, 2)
        for *piece, pos, removes in zip(*chunks, POS.split(sizes, 1), removals, strict=True):
            output, state = scan(*piece, Flow(pos, False), state, removes)
            pieces.append(output)
        assert_close(torch.cat(pieces, 2) * real, expected * real, rtol=0, atol=1e-11)


def test_a_forgetting_mean_is_its_rule():
    """In whole, and in pieces of any length; keys so large that their exponentials have no number."""
    length = POS.shape[1]
    k, v = 400 * drawn(2, length, 5), drawn(2, length, 6)[..., :5]
    decay, bonus = drawn(5).exp(), drawn(5)
    expected = torch.zeros_like(v)
    for row in range(2):
        keys, values = torch.zeros(0, 5).double(), torch.zeros(0, 5).double()
        for t, place in enumerate(POS[row]):
            if place < 0:
                continue
            keys, values = (x[: len(x) * int(place != 0)] for x in (keys, values))
            weights = torch.cat((keys, (k[row, t] + bonus)[None])).softmax(0)
            expected[row, t] = (weights * torch.cat((values, v[row, t][None]))).sum(0)
            keys = torch.cat((keys - decay, k[row, t][None]))
            values = torch.cat((values, v[row, t][None]))
    real = (POS >= 0)[..., None]
    for sizes in ([length], [2, 1, 69, 1, 100, length - 173]):
        state, pieces = (), []
        chunks = (x.split(sizes, 1) for x in (k, v, POS))
        for key, value, pos in zip(*chunks, strict=True):
            output, state = forgetting_mean(key, value, decay, bonus, Flow(pos, False), state)
            pieces.append(output)
        assert_close(torch.cat(pieces, 1) * real, expected * real, rtol=0, atol=1e-11)


def test_a_convolution_is_its_rule():
    module = CausalConv(5, 4, True).double()
    x, length = drawn(2, POS.shape[1], 5), POS.shape[1]
    with torch.no_grad():
        module.weight.copy_(drawn(5, 1, 4))
        module.bias.copy_(drawn(5))
        expected = torch.zeros_like(x)
        for row in range(2):
            window = []
            for t, place in enumerate(POS[row]):
                window = [] if place == 0 else window
                if place >= 0:
                    window = [*window, x[row, t]][-4:]
                    taps = module.weight[:, 0, -len(window) :].T
                    expected[row, t] = (torch.stack(window) * taps).sum(0) + module.bias
        real = (POS >= 0)[..., None]
        for sizes in ([length], [2, 1, 69, 1, 100, length - 173]):
            before, pieces = None, []
            for piece, pos in zip(x.split(sizes, 1), POS.split(sizes, 1), strict=True):
                output, before = module(piece, Flow(pos, False), before)
                pieces.append(output)
            assert_close(torch.cat(pieces, 1) * real, expected * real, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: type(mixer).__name__)
@torch.no_grad()
def test_a_state_has_one_size_and_its_cost_is_counted(mixer):
    cfg = replace(tiny.decoder(c.Block(mixer, None)), context=200)
    model, cache, sizes = tiny.model(cfg), Cache(cfg), []
    for length in (1, 7, 70):
        model(tiny.tokens(3, length), cache=cache)
        sizes.append(sum(x.numel() for state, _ in cache.layers for x in state.tensors))
    assert sizes == [sizes[0]] * 3
    assert all(type(block.attn) is MODULES[mixer] for block in model.decoder.blocks)
    price = cost.cost(cfg, batch=3)
    assert price.cache("fp32") == 4 * sizes[0] and price.cache_per_token() == 0
    assert price.total == sum(weight.numel() for weight in model.parameters())
    assert price.attention_flops == 2 * mixer.flops(tiny.DIM, 200) > 0


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: type(mixer).__name__)
def test_gradients_are_finite_and_of_every_weight(mixer):
    """Where a row has padding and two documents as well."""
    model = build_model(replace(tiny.decoder(c.Block(mixer, None)), context=300), seed=1)
    documents = (POS == 0).cumsum(1)
    logits = model(tiny.tokens(2, POS.shape[1]), pos=POS, document_ids=documents).logits
    logits[POS >= 0].square().mean().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.isfinite().all(), name
        assert weight.grad.abs().max() > 0, name


def from_authors_layout(tensors):
    """A model of ours with the weights of an RWKV-7 as its authors store them."""
    heads, width = tensors["blocks.0.att.r_k"].shape
    vocab, dim = tensors["emb.weight"].shape
    weights = {
        "embed.token.weight": tensors["emb.weight"],
        "head.proj.weight": tensors["head.weight"],
    }
    norms = {"decoder.first_norm": "blocks.0.ln0", "decoder.last_norm": "ln_out"}
    blocks = []
    for layer in range(rwkv7.LAYERS):
        first, second = (f"decoder.blocks.{2 * layer + i}" for i in range(2))
        att, ffn = f"blocks.{layer}.att", f"blocks.{layer}.ffn"
        norms |= {f"{first}.attn_norm": f"blocks.{layer}.ln1"}
        norms |= {f"{second}.attn_norm": f"blocks.{layer}.ln2"}
        names = {f"mix_{letter}": f"x_{letter}" for letter in "rwkvag"}
        names |= {"r.weight": "receptance.weight", "k.weight": "key.weight"}
        names |= {"v.weight": "value.weight", "out_proj.weight": "output.weight"}
        names |= {"decay": "w0", "a_up.bias": "a0", "v_up.bias": "v0", "bonus": "r_k"}
        names |= {"removal": "k_k", "damping": "k_a", "gain": "ln_x.weight", "offset": "ln_x.bias"}
        names |= {f"{letter}_down.weight": f"{letter}1" for letter in "wavg"}
        names |= {f"{letter}_up.weight": f"{letter}2" for letter in "wavg"}
        for name, file_name in names.items():
            if f"{att}.{file_name}" in tensors:
                tensor = tensors[f"{att}.{file_name}"]
                weights[f"{first}.attn.{name}"] = tensor.T if file_name[1] in "12" else tensor
        for name, file_name in {"mix_k": "x_k", "up.weight": "key.weight"}.items():
            weights[f"{second}.attn.{name}"] = tensors[f"{ffn}.{file_name}"]
        weights[f"{second}.attn.down.weight"] = tensors[f"{ffn}.value.weight"]
        ranks = rwkv7.RANKS
        mixer = TimeMix7(heads, width, ranks["w"], ranks["g"], ranks["v"] if layer else None)
        hidden = ChannelMix7(len(tensors[f"{ffn}.key.weight"]))
        blocks += [c.Block(sublayer, None, c.LayerNorm()) for sublayer in (mixer, hidden)]
    for name, file_name in norms.items():
        for end in ("weight", "bias"):
            weights[f"{name}.{end}"] = tensors[f"{file_name}.{end}"]
    outer_norms = {"first_norm": c.LayerNorm(), "last_norm": c.LayerNorm()}
    stack = c.Stack(len(blocks), tuple(blocks), c.NoPosition(), **outer_norms)
    model = build_model(c.Decoder(dim, 64, c.Embed(vocab), stack, c.Head(tied=False)), seed=0)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    model.load_state_dict({name: x.reshape(shapes[name]) for name, x in weights.items()})
    return model.eval()


@torch.no_grad()
def test_logits_of_rwkv_7_are_those_of_its_authors_package():
    """A text in whole, token by token, and in pieces; ``rwkv7.py`` says how the numbers were made."""
    expected = read_json(rwkv7.FILE)
    tensors, tokens = rwkv7.weights()
    model, tokens = from_authors_layout(tensors), torch.tensor([tokens])
    full_logits, steps = (torch.tensor(expected[name]) for name in ("whole", "steps"))
    assert_close(model(tokens).logits[0], full_logits, rtol=0, atol=1e-5)
    for sizes in ([1] * rwkv7.LENGTH, [3, 33, 1, 3]):
        cache = Cache(model.config)
        pieces = [model(piece, cache=cache).logits[0] for piece in tokens.split(sizes, 1)]
        assert_close(torch.cat(pieces), steps, rtol=0, atol=1e-5)


def test_a_gated_expert_is_a_gated_mlp_times_a_share():
    module, x = GatedExpertModule(GatedExpert(24), 8).double(), drawn(2, 3, 8)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(drawn(*weight.shape))
        expected = GatedMLP.forward(module, x, Flow(POS)) * (x @ module.share.weight.T).sigmoid()
        assert_close(module(x, Flow(POS)), expected, rtol=1e-12, atol=1e-12)


DIFFERENCES = {
    "": DifferentialAttention(8, 4),
    "wide": DifferentialAttention(4, 4, 12, eps=0.01),
    "narrow": DifferentialAttention(6, 2, mask=c.Window(5)),
}


@pytest.mark.parametrize("shape", DIFFERENCES)
@torch.no_grad()
def test_a_difference_is_its_rule(shape):
    """Equation 1 of the paper with the pairs of DiffLlama, head after head, in the third block."""
    cfg = DIFFERENCES[shape]
    heads, kv_heads, size = cfg.heads, cfg.kv_heads, cfg.width(24)
    body = c.Stack(3, (c.Block(cfg, None, None),), c.NoPosition())
    model = build_model(c.Decoder(24, 32, c.Embed(9), body, init=tiny.LOUD), seed=1).double()
    module, x, length = model.decoder.blocks[2].attn, drawn(2, 11, 24), 11
    assert type(module) is DifferentialAttentionModule
    flow = Flow(torch.arange(length)[None], contiguous=True)
    q, k, v = (getattr(module, name)(x).unflatten(-1, (-1, size)) for name in "qkv")
    share = [
        (getattr(module, f"lambda_q{i}") @ getattr(module, f"lambda_k{i}")).exp() for i in (1, 2)
    ]
    start = 0.8 - 0.6 * 2.718281828459045 ** (-0.3 * 2)
    see = torch.ones(length, length).tril().bool()
    see &= torch.ones(length, length).triu(1 - getattr(cfg.mask, "size", length)).bool()
    pairs = []
    for first in range(heads // 2):
        results = []
        for head in (first, first + heads // 2):
            group = head // (heads // kv_heads)
            scores = q[:, :, head] @ k[:, :, group].mT / size**0.5
            pattern = scores.masked_fill(~see, float("-inf")).softmax(-1)
            partner = group % (kv_heads // 2)
            values = [v[:, :, partner], v[:, :, partner + kv_heads // 2]]
            results.append(pattern @ torch.cat(values, -1))
        mixed = results[0] - (share[0] - share[1] + start) * results[1]
        unit = mixed / (mixed.square().mean(-1, keepdim=True) + cfg.eps).sqrt()
        pairs.append((1 - start) * unit)
    expected = module.out(torch.cat(pairs, -1))
    assert_close(module(x, flow, model.decoder.position), expected, rtol=0, atol=1e-12)


def test_lambda_starts_by_the_block_and_learns():
    block = c.Block(DIFFERENCES[""], None)
    for kind in (c.Stack, LoopedStack):
        body = kind(3, (block,), c.NoPosition())
        model = build_model(c.Decoder(32, 32, c.Embed(9), body), seed=1)
        starts = [block.attn.start for block in model.decoder.blocks]
        assert starts == pytest.approx([0.2, 0.3555090676, 0.4707130184], abs=1e-9)
        drawn_std = model.decoder.blocks[0].attn.lambda_q1.std()
        assert 0.02 < drawn_std < 0.3
        model(torch.arange(9)[None]).logits.square().mean().backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None and weight.grad.abs().max() > 0, name


@torch.no_grad()
def test_a_difference_costs_what_is_computed_and_its_cache_what_attention_keeps():
    cfg = tiny.decoder(tiny.block(DIFFERENCES[""]), position=c.NoPosition())
    plain = tiny.decoder(tiny.block(c.Attention(8, 4)), position=c.NoPosition())
    flops, length = [], cfg.context
    for shape in (cfg, plain):
        model = tiny.model(shape)
        model.engine = "eager"
        with FlopCounterMode(display=False) as counter:
            model(tiny.tokens(1, length))
        flop_counts = counter.get_flop_counts()["Global"]
        flops.append(flop_counts[torch.ops.aten.bmm] / length)
    prices = [cost.cost(shape) for shape in (cfg, plain)]
    causal = (length + 1) / (2 * length)  # of the scores that eager computes
    assert [price.attention_flops for price in prices] == [x * causal for x in flops]
    assert flops[0] == 2 * flops[1]
    assert prices[0].cache("fp32") == prices[1].cache("fp32")


@torch.no_grad()
def test_differences_are_served_together_as_alone():
    model = tiny.model("diffllama")
    requests = [Request([1 + i % 5, 2, 7, 9 + i], max_new=12, seed=i) for i in range(6)]
    with Engine(model) as engine:
        handles = [engine.submit(request) for request in requests]
        together = [handle.result().completions[0].tokens for handle in handles]
    alone = [generate(model, None, r.tokens, max_new=12, seed=r.seed).run() for r in requests]
    assert together == [result.tokens[0] for result in alone]


def test_a_run_file_names_it(tmp_path):
    (tmp_path / "text.txt").write_text("a text of some words. " * 400)
    (tmp_path / "run.toml").write_text(
        f"""
        [model]
        recipe = "glass/1m"
        decoder.pattern.attention = {{type = "DifferentialAttention", heads = 8, kv_heads = 4}}
        [data]
        train = "{tmp_path / "text.txt"}"
        tokenizer = "byte"
        """
    )
    plan = plan_run(read_run(tmp_path / "run.toml"))
    assert {type(b.attention) for b in plan.model.decoder.pattern} == {DifferentialAttention}


def test_what_cannot_be_is_a_sentence():
    with mistake("DifferentialAttention has 3 key-value heads and takes them in pairs"):
        DifferentialAttention(6, 3)
    with mistake("groups 4 does not divide state_heads 6"):
        Mamba2(6, groups=4)
    with mistake("value_heads 3 is not a multiple of key_heads 2"):
        GatedDelta(2, 3)
    with mistake("GatedExpert has no biases"):
        GatedExpert(8, bias=True)
    late = build_model(tiny.decoder(c.Block(TimeMix7(3, 8, value_rank=2), None)))
    with mistake("The first TimeMix7 of a pass has no earlier values"):
        late(tiny.tokens())
    for mixer in MIXERS:
        both_ways = {"encoder.pattern": (c.Block(mixer, c.MLP(8)),)}
        with mistake("give it a causal stack"):
            build_model(serial.change(tiny.vaswani(), both_ways))

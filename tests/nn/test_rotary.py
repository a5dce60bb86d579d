"""Rotary positions in neighbouring pairs, held to the published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.nn import build_model
from glassformer.nn.build import build
from glassformer.nn.flow import Flow


def test_neighbours_turn_as_complex_numbers() -> None:
    """Llama's own code: each pair of neighbours is one complex number times e^(i pos theta^(-2 j / D))."""
    x, pos = torch.randn(2, 3, 11, 8), torch.randint(0, 500, (2, 11))
    turned = build(c.Rotary(500.0, interleaved=True), 8, 1, True).rotate(x, Flow(pos))
    angle = pos[:, None, :, None].double() * 500.0 ** -(torch.arange(4).double() / 4)
    spun = torch.view_as_complex(x.double().unflatten(-1, (4, 2))) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.view_as_real(spun).flatten(-2).float(), rtol=0, atol=1e-4)


def test_neighbours_are_halves_in_another_order() -> None:
    """With each head's rows of the matrices put in order the two models are one: what a published layout does."""
    cfg = tiny.DECODERS["llama"]
    scaling = cfg.decoder.position
    other = replace(cfg, decoder=replace(cfg.decoder, position=replace(scaling, interleaved=True)))
    halves, neighbours = tiny.model(cfg), tiny.model(other)
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7
    for block in neighbours.decoder.blocks:
        for layer in (block.attn.q, block.attn.k):
            layer.weight.data = layer.weight.view(-1, 8, tiny.DIM)[:, order].flatten(0, 1)
    torch.testing.assert_close(neighbours(tiny.tokens()).logits, halves(tiny.tokens()).logits, rtol=0, atol=1e-5)


def test_a_gptj_is_transformers_gptj() -> None:
    transformers = pytest.importorskip("transformers")
    raw = transformers.GPTJConfig(
        vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=2, rotary_dim=8, initializer_range=0.3
    )
    theirs = transformers.GPTJForCausalLM(raw).eval()
    block = c.Block(c.Attention(2), c.MLP(128, bias=True), c.LayerNorm(), "parallel")
    stack = c.Stack(2, (block,), c.Rotary(fraction=0.5, interleaved=True), last_norm=c.LayerNorm())
    model = build_model(c.Decoder(32, 32, c.Embed(61), stack, c.Head(tied=False, bias=True)), seed=1).eval()
    words = {"transformer.wte": "embed.token", "transformer.ln_f": "decoder.last_norm", "lm_head": "head.proj"}
    words |= {"transformer.h": "decoder.blocks", "ln_1": "attn_norm", "mlp.fc_in": "ffn.up", "mlp.fc_out": "ffn.down"}
    words |= {"attn.q_proj": "attn.q", "attn.k_proj": "attn.k", "attn.v_proj": "attn.v", "attn.out_proj": "attn.out"}
    state = {}
    for name, weight in theirs.state_dict().items():
        for old, new in words.items():
            name = name.replace(old, new)
        state[name] = weight
    model.load_state_dict({name: weight for name, weight in state.items() if name in model.state_dict()})
    given = torch.randint(0, 61, (2, 17))
    with torch.no_grad():
        torch.testing.assert_close(model(given).logits, theirs(given).logits, rtol=0, atol=1e-5)

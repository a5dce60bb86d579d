"""Every named value, set to zero, changes the logits as a forward pass written out by hand says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.nn import Cache, Tape
from glassformer.core.nn.layers import ACTIVATIONS
from glassformer.fast import prepacked
from glassformer.sight import paths

Look = Callable[[str, Tensor], Tensor]
ALONE = c.Stack(2, (c.Block(c.Attention(4), None, None),))
FAMILIES = {
    "gpt2": tiny.gpt2(),
    "llama": tiny.decoder(tiny.block(c.Attention(4, 2), c.GatedMLP(64)), position=c.Sinusoidal()),
    "parallel": tiny.decoder(tiny.block(place="parallel"), position=c.Learned(tiny.CONTEXT)),
    "sandwich": tiny.decoder(tiny.block(place="sandwich"), position=c.NoPosition()),
    "previous_token_embeddings": replace(
        tiny.decoder(tiny.block(), position=c.NoPosition()),
        embed=c.Embed(tiny.VOCAB, 2.0, previous_token_embeddings=2),
    ),
    "experts": tiny.decoder(
        tiny.block(feedforward=c.MoE(4, 2, c.GatedMLP(16))), position=c.NoPosition()
    ),
    "attention-only": replace(tiny.DECODERS["attention-only"], decoder=ALONE),
    "bert": tiny.bert(),
    "vaswani": tiny.vaswani(),
}


def within(look, above):
    return lambda leaf, value: look(f"{above}.{leaf}", value)


def attention(piece, x, look, memory, causal):
    x = look("in", x)
    inside = x if memory is None else memory
    q = piece.q(x)
    k = piece.k(inside)
    v = piece.v(inside)
    if memory is None:
        q, k, v = look("qkv", torch.cat((q, k, v), -1)).split(
            [q.shape[-1], k.shape[-1], v.shape[-1]], -1
        )
    q, k, v = (
        look(name, item.unflatten(-1, (-1, 8)).transpose(1, 2))
        for name, item in zip("qkv", (q, k, v), strict=True)
    )
    k, v = (item.repeat_interleave(4 // item.shape[1], 1) for item in (k, v))
    scores = q @ k.mT / 8**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    z = look("z", look("pattern", look("scores", scores).softmax(-1)) @ v)
    return look("write", piece.out(z.transpose(1, 2).flatten(2)))


def think(piece, x, look):
    x = look("in", x)
    if hasattr(piece, "router"):
        weight, chosen = look("router", piece.router(x)).softmax(-1).topk(2)
        weight, chosen = (
            look("weight", weight / weight.sum(-1, keepdim=True)),
            look("chosen", chosen),
        )
        pre, up = (
            torch.einsum("btc,btkhc->btkh", x, table[chosen]) for table in (piece.gate, piece.up)
        )
        hidden = look("hidden", look("gate", piece.act(look("pre", pre))) * look("up", up))
        return look(
            "write", torch.einsum("btkh,btkch,btk->btc", hidden, piece.down[chosen], weight)
        )
    if hasattr(piece, "gate"):
        gate = look("gate", piece.act(look("pre", piece.gate(x))))
        return look("write", piece.down(look("hidden", gate * look("up", piece.up(x)))))
    return look("write", piece.down(look("hidden", piece.act(look("pre", piece.up(x))))))


def one_block(piece, x, look, memory, causal):
    def sub(name, x):
        individual = getattr(piece, name)
        if name == "ffn":
            return think(individual, x, within(look, name))
        return attention(
            individual,
            x,
            within(look, name),
            memory if name == "cross" else None,
            causal and name == "attn",
        )

    if piece.place == "parallel":
        observed = piece.attn_norm(x)
        return look("resid", x + sub("attn", observed) + sub("ffn", observed))
    steps = [name for name in ("attn", "cross", "ffn") if getattr(piece, name) is not None]
    for place, name in enumerate(steps):
        after = "resid" if name == steps[-1] else ("mid", "mid_cross")[place]
        norm = getattr(piece, f"{name}_norm")
        after_norm = getattr(piece, f"{name}_post_norm", lambda write: write)
        x = look(
            after,
            norm(x + sub(name, x)) if piece.place == "post" else x + after_norm(sub(name, norm(x))),
        )
    return x


def one_stack(model, side, bounds, tokens, look, memory):
    embed = model.embed
    stack = getattr(model, side)
    x = look(f"{bounds}.token", embed.token(tokens))
    for back, table in enumerate(embed.lag):
        missing = tokens.new_full((len(tokens), back + 1), tiny.VOCAB)
        x = x + look(
            f"{bounds}.lag.{back}", table(torch.cat((missing, tokens), 1)[:, : tokens.shape[1]])
        )
    x = x * embed.scale
    if embed.segment is not None:
        x = x + look(f"{bounds}.segment", embed.segment(torch.zeros_like(tokens)))
    cfg = model.config.stacks[side].position
    T = tokens.shape[1]
    if isinstance(cfg, c.Learned):
        x = x + look(f"{bounds}.position", stack.position.weight[None, :T])
    elif isinstance(cfg, c.Sinusoidal):
        angle = torch.arange(T)[:, None] / cfg.theta ** (torch.arange(0, tiny.DIM, 2) / tiny.DIM)
        x = x + look(
            f"{bounds}.position", torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[None]
        )
    x = look(f"{side}.embed", stack.first_norm(x))
    for index, block in enumerate(stack.blocks):
        x = one_block(block, x, within(look, f"{side}.blocks.{index}"), memory, side == "decoder")
    return look(f"{side}.out", stack.last_norm(x))


def by_hand(model, tokens, source, look):
    """The logits, every value passed through ``look``."""
    memory = (
        None if source is None else one_stack(model, "encoder", "source_embed", source, look, None)
    )
    side = "decoder" if hasattr(model, "decoder") else "encoder"
    hidden = one_stack(model, side, "embed", tokens, look, memory)
    cfg = model.config.head
    if cfg.transform:
        hidden = model.head.norm(ACTIVATIONS[cfg.transform](model.head.transform(hidden)))
    table = model.embed.token.weight if cfg.tied else model.head.proj.weight
    return look("logits", F.linear(hidden, table, model.head.proj.bias))


def silence(value):
    return torch.zeros_like(value)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_value_set_to_zero_gives_what_the_hand_says(name):
    model = tiny.model(FAMILIES[name])
    tokens = tiny.tokens(2, 7)
    source = tiny.tokens(2, 5, seed=5) if name == "vaswani" else None
    pair = (tokens,) if source is None else (tokens, source)
    names = {}

    def note(path, value):
        return names.setdefault(path, value)

    plain = by_hand(model, tokens, source, note)
    tape = Tape("*")
    assert_close(model(*pair, tape=tape).logits, plain, rtol=0, atol=1e-5)
    observed = {path: value for path, value in tape.records.items() if not path.startswith("pool.")}
    assert observed.keys() == names.keys()
    for path, value in observed.items():
        assert_close(value, names[path].expand_as(value), rtol=0, atol=1e-5, msg=path)
    changed = 0
    for path in names:
        expected = by_hand(
            model,
            tokens,
            source,
            lambda at, value, path=path: silence(value) if at == path else value,
        )
        logits = model(*pair, tape=Tape(edits={path: lambda path, value: silence(value)})).logits
        assert_close(logits, expected, rtol=0, atol=2e-5, msg=path)
        changed += not torch.allclose(logits, plain, atol=1e-3)
    assert changed >= len(names) - 2, (
        "only a shift of all scores, and a chosen expert that is 0 already, may not show"
    )


@pytest.mark.parametrize("name", tiny.ALL)
@torch.no_grad()
def test_identity_edits_change_no_bit(name):
    """Scores and patterns are covered where the engine is the readable one; fused ones round
    otherwise."""
    model = tiny.model(name)
    tokens = tiny.tokens()
    pair = (
        (tokens, tiny.tokens(3, 9, seed=5))
        if isinstance(model.config, c.EncoderDecoder)
        else (tokens,)
    )
    model.engine = "eager"
    names = Tape("*")
    plain = model(*pair, tape=names).logits
    tape = Tape(edits={path: lambda path, value: value.clone() for path in names.records})
    assert torch.equal(model(*pair, tape=tape).logits, plain)


@torch.no_grad()
def test_edits_reach_what_fused_products_and_caches_hold():
    """With q, k and v (gate and up) packed into one product, one token at a time: the same change
    as in one go."""
    for path, block in (
        ("attn.qkv", "llama"),
        ("ffn.gate", "llama"),
        ("ffn.up", "llama"),
        ("ffn.pre", "experts"),
    ):
        model = tiny.model(FAMILIES[block])
        tokens = tiny.tokens(1, 9)
        edits = {f"decoder.blocks.1.{path}": lambda path, value: value * 0.5}
        logits = model(tokens, tape=Tape(edits=edits)).logits
        cache = Cache(model.config)
        view = prepacked.prepack(model)
        assert view.packed
        assert view.complete
        second_logits = [
            view.model(piece, cache=cache, tape=Tape(edits=edits)).logits
            for piece in tokens.split([5, 1, 1, 1, 1], 1)
        ]
        assert_close(torch.cat(second_logits, 1), logits, rtol=0, atol=1e-5)
        assert not torch.allclose(logits, model(tokens).logits, atol=1e-3)


@torch.no_grad()
def test_the_page_of_names_has_them_all():
    page = (Path(__file__).parents[2] / "docs/names.md").read_text(encoding="utf-8")
    for config in tiny.ALL.values():
        leaves = {
            re.sub(r".*blocks\.\d+\.|\d+$|shared\.|cross\.", "", path)
            for path in paths(tiny.model(config))
        }
        missing = [
            leaf
            for leaf in leaves
            if not re.search(rf"[`.]{re.escape(leaf.rpartition('.')[2])}\b", page)
        ]
        assert not missing

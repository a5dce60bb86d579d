"""From a token to a block: pages 1 to 6 of the road."""

from __future__ import annotations

import math

import torch

from glassformer.core.nn.hooks import Tape
from glassformer.families import find
from glassformer.learn import real_model

from .shipped import TEXT, shipped_pass, value_of


def token() -> str:
    p = shipped_pass()
    return f"{TEXT!r} is {len(p.ids)} tokens of our model: {' | '.join(p.pieces)}"


def vocabulary() -> str:
    return (
        f"Our model knows {shipped_pass().tokenizer.size:,} tokens; GPT-2 "
        f"{find('gpt2/124m').embed.vocab:,}."
    )


def embedding_matrix() -> str:
    table = shipped_pass().model.embed.token.weight
    return (
        f"Our model's is {tuple(table.shape)}: {table.numel():,} numbers; of "
        f"{shipped_pass().pieces[0]!r} the first is "
        f"{table[shipped_pass().ids[0], 0]:.4f}."
    )


def positional_embedding() -> str:
    angle = 3 / 10000 ** (2 / 16)
    return (
        f"Sinusoidal, width 16, place 3: the second pair is ({math.sin(angle):.4f}, "
        f"{math.cos(angle):.4f}); our "
        "model turns (rotary) instead."
    )


def rotary_embedding() -> str:
    p = shipped_pass()
    position, flow = p.model.decoder.position, p.model.flow(torch.tensor([p.ids]), None)
    d = p.model.decoder.blocks[0].attn.head_dim
    unit = torch.zeros(1, 1, len(p.ids), d)
    unit[..., 0] = 1
    turned = position.rotate(unit, flow)[0, 0, 1]
    return (
        f"In our model (1, 0) at place 1 becomes ({turned[0]:.4f}, {turned[d // 2]:.4f}) in the "
        f"first of {d // 2} "
        "pairs: one radian."
    )


def attention() -> str:
    pattern = value_of(1, "attn.pattern")[0, -1]
    at = int(pattern.argmax())
    return (
        f"Block 1, head 0 of our model: {shipped_pass().pieces[-1]!r} spends "
        f"{float(pattern[at]):.3f} of its weight on "
        f"{shipped_pass().pieces[at]!r}."
    )


def self_attention() -> str:
    pattern = value_of(0, "attn.pattern")
    return (
        f"Of {TEXT!r} each head of our model makes a pattern {tuple(pattern.shape[1:])}; "
        f"{pattern.shape[0] * 4} "
        "heads in 4 blocks."
    )


def multi_head_attention() -> str:
    attn = shipped_pass().model.decoder.blocks[0].attn
    return (
        f"Our model has {attn.heads} heads of width {attn.head_dim} in each of its "
        f"{len(shipped_pass().model.decoder.blocks)} blocks."
    )


def query() -> str:
    q = value_of(0, "attn.q")
    return (
        f"{shipped_pass().pieces[-1]!r} in block 0, head 0 of our model: {q.shape[-1]} numbers, "
        "of length "
        f"{float(q[0, -1].norm()):.3f}."
    )


def key() -> str:
    q, k = value_of(0, "attn.q")[0, -1], value_of(0, "attn.k")[0, 0]
    return (
        f"Block 0, head 0 of our model: the query of {shipped_pass().pieces[-1]!r} times the key "
        "of "
        f"{shipped_pass().pieces[0]!r} is {float(q @ k):.3f}, before it is divided by "
        f"sqrt({len(q)})."
    )


def value() -> str:
    v = value_of(0, "attn.v")
    return (
        f"{shipped_pass().pieces[0]!r} in block 0, head 0 of our model hands over {v.shape[-1]} "
        "numbers of length "
        f"{float(v[0, 0].norm()):.3f}."
    )


def softmax() -> str:
    shares = torch.tensor([2.0, 1.0, 0.0]).softmax(-1).tolist()
    return (
        f"softmax([2, 1, 0]) = [{', '.join(f'{share:.4f}' for share in shares)}]; our model's "
        "likeliest next "
        f"token has {float(shipped_pass().chance.max()):.4f}."
    )


def causal_mask() -> str:
    scores = value_of(0, "attn.scores")[0]
    hidden = int(torch.isinf(scores).sum())
    return (
        f"{hidden} of the {scores.numel()} scores of each head of our model are -inf on {TEXT!r}."
    )


def residual_connection() -> str:
    before, after = value_of(0, "mid"), value_of(0, "resid")
    return (
        f"Block 0 of our model: a vector of length {float(before[-1].norm()):.3f}, "
        f"{float((after - before)[-1].norm()):.3f} is added by the feed-forward network."
    )


def layer_normalization() -> str:
    raw, normed = value_of(3, "mid")[-1], value_of(3, "ffn.in")[-1]
    rms = [float(x.square().mean().sqrt()) for x in (raw, normed)]
    return (
        f"Block 3 of our model (RMSNorm): the root mean square of {shipped_pass().pieces[-1]!r} "
        f"is {rms[0]:.3f} before "
        f"and {rms[1]:.3f} after."
    )


def feed_forward_network() -> str:
    ffn = shipped_pass().model.decoder.blocks[0].ffn
    count = sum(weight.numel() for weight in ffn.parameters())
    return (
        f"In our model {ffn.up.in_features} numbers become {ffn.up.out_features} and "
        f"{ffn.down.out_features} "
        f"again: {count:,} weights a block."
    )


def cross_attention() -> str:
    tape, model = Tape("*.cross.pattern"), real_model.translator()
    with torch.no_grad():
        model(torch.arange(4)[None], torch.arange(7)[None], tape=tape)
    pattern = tape["decoder.blocks.0.cross.pattern"][0, 0]
    return (
        "A small encoder-decoder of 2017 (weights drawn), 4 tokens over 7 of the source: a pattern "
        f"{tuple(pattern.shape)}, row 0 sums to {float(pattern[0].sum()):.4f}."
    )


def encoder() -> str:
    model, tokens = real_model.encoder().eval(), torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, -1] = 20
    moved = (real_model.logits(model, tokens) - real_model.logits(model, changed))[0, 0].abs().max()
    return (
        "Another last token moves what a small encoder (weights drawn) says at the first by "
        f"{float(moved):.4f}; "
        "in a decoder by 0."
    )


def decoder() -> str:
    p, changed = shipped_pass(), shipped_pass().ids.copy()
    changed[-1] = 5
    moved = (
        (real_model.logits(p.model, torch.tensor([changed]))[0] - p.values["logits"]).abs().amax(-1)
    )
    return (
        f"Another last token moves what our model says at the first by {float(moved[0]):.4f}, at "
        "the last by "
        f"{float(moved[-1]):.2f}."
    )

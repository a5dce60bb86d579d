"""Cheaper attention, experts, a look inside, running it: pages 9 to 12 of the road."""

from __future__ import annotations

from typing import Any

import torch

from glassformer.core import config as c
from glassformer.core.nn.hooks import Tape
from glassformer.families import find
from glassformer.learn import real_model
from glassformer.scale.cost import cost

from .shipped import AT, TEXT, cache_bytes, shipped_pass, value_of


def multi_query_attention() -> str:
    attn = shipped_pass().model.decoder.blocks[0].attn
    cache_size = cache_bytes(shipped_pass().model.config)
    return (
        f"Our model's {attn.heads} heads keep {cache_size:,} bytes a token in bf16; with one key-value "
        "head "
        f"{cache_size // attn.heads:,}."
    )


def grouped_query_attention() -> str:
    shape = find("llama/3-8b")
    attn: Any = shape.decoder.pattern[0].attention  # type: ignore[union-attr]
    kib = cache_bytes(shape) / 1024
    return (
        f"Llama 3 8B: {attn.heads} query heads over {attn.kv_heads}, {kib:.0f} KiB a token in "
        "bf16 instead of "
        f"{kib * attn.heads / attn.kv_heads:.0f}."
    )


def sparse_attention() -> str:
    from glassformer.sight import masks

    picture: Any = masks.picture("window(64)", 1024).to_dict()
    return (
        f"1,024 tokens: {picture['causal_pairs']:,} pairs causally, "
        f"{picture['visited']['decoder']:,} in a window of 64."
    )


def ring_attention() -> str:
    q, k, v = value_of(0, "attn.q")[0, -1:], value_of(0, "attn.k")[0], value_of(0, "attn.v")[0]
    scores = q @ k.T * q.shape[-1] ** -0.5
    half = len(k) // 2
    halves = [
        (scores[:, span].logsumexp(-1), scores[:, span].softmax(-1) @ v[span])
        for span in (slice(half), slice(half, None))
    ]
    lse = torch.logaddexp(halves[0][0], halves[1][0])
    merged = sum(out * (half_lse - lse).exp()[:, None] for half_lse, out in halves)
    apart = float((merged - scores.softmax(-1) @ v).abs().max())
    return (
        f"Our model's last query over two halves of its keys, merged by their sums: {apart:.1e} "
        "from all keys at once."
    )


def mixture_of_experts() -> str:
    costs = cost(find("mixtral/8x7b"))
    return (
        f"Mixtral 8x7B has {costs.total / 1e9:.1f} billion parameters; a token uses "
        f"{costs.active / 1e9:.1f} of them."
    )


def router() -> str:
    tape, model = Tape("*.chosen"), real_model.decoder(c.MoE(4, 2, c.GatedMLP(32)))
    with torch.no_grad():
        model(torch.arange(40)[None], tape=tape)
    loads = torch.bincount(tape["decoder.blocks.0.ffn.chosen"].flatten(), minlength=4).tolist()
    return (
        "A small mixture of 4 experts, 2 a token (weights drawn): 40 tokens go to them "
        f"{', '.join(map(str, loads))} times."
    )


def logit_lens() -> str:
    p = shipped_pass()
    states = torch.stack([value_of(block, "resid")[-1] for block in range(4)])
    with torch.no_grad():
        probabilities = p.model.head(p.model.decoder.last_norm(states), p.model.embed).softmax(-1)
    final = int(probabilities[-1].argmax())
    shares = ", ".join(f"{float(row[final]):.3f}" for row in probabilities)
    return (
        f"Our model's next token {p.word(final)} after {TEXT!r} has, after blocks 0 to 3: {shares}."
    )


def activation_patching() -> str:
    from glassformer.sight import patch_grid

    p = shipped_pass()
    best = int(p.chance.argmax())
    clean, corrupted = list(p.ids), list(p.ids)
    corrupted[AT] = p.ids[3]
    grid = patch_grid(
        p.model, p.tokenizer, clean, corrupted, answer=best, parts="resid", progress=False
    )
    effects = [row[AT] for row in grid["resid"].effect]
    return (
        f"Another word for {p.pieces[AT]!r} takes the logit of {p.word(best)} from "
        f"{grid.clean_value:.3f} to "
        f"{grid.corrupted_value:.3f}; its stream put back after block 0 undoes {effects[0]:.2f} "
        "of it, after the last "
        f"block {effects[-1]:.2f}."
    )


def _heads() -> Any:
    from glassformer.sight import head_scores

    return head_scores(shipped_pass().model, shipped_pass().tokenizer, draws=2, length=16).heads


def induction_head() -> str:
    best = max(_heads(), key=lambda head: head.scores["induction"])
    return (
        f"Of our model's heads {best.path.removeprefix('decoder.')}, head {best.head}, does most "
        "of it: "
        f"{best.scores['induction']:.3f} of its weight on repeated random tokens."
    )


def attention_sink() -> str:
    best = max(_heads(), key=lambda head: head.scores["first"])
    return (
        f"{best.path.removeprefix('decoder.')}, head {best.head}, of our model spends "
        f"{best.scores['first']:.3f} "
        "of its weight on the first token."
    )


def quantization() -> str:
    from glassformer.fast import rounding

    weight = shipped_pass().model.decoder.blocks[0].ffn.up.weight.detach()
    errors = []
    for bits in (8, 4):
        codes, scales = rounding.nearest(weight, bits, 32)
        again = rounding.decode(codes, scales, 32, torch.float32)
        errors.append(float((again - weight).norm() / weight.norm()))
    return (
        f"A {tuple(weight.shape)} matrix of our model is off by {errors[0]:.2%} in 8 bits, by "
        f"{errors[1]:.1%} in 4."
    )


def speculative_decoding() -> str:
    from glassformer.serve.engine.sequence import PromptLookup

    ids = shipped_pass().ids
    guessed = PromptLookup().propose([*ids, *ids[:3]], 4)
    right = sum(guess == target for guess, target in zip(guessed, ids[3:7], strict=False))
    return (
        f"{TEXT!r} begun a second time: of {len(guessed)} tokens guessed from the text itself "
        f"{right} are its "
        "next ones."
    )

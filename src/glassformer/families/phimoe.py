"""Phi-3.5 MoE: layer norms with biases, and sixteen experts of which a sparse mixer takes two."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import (
    Attention,
    GatedMLP,
    Head,
    LayerNorm,
    LongRopeScaling,
    Model,
    Rotary,
)
from .decoder_pages import (
    LONGROPE,
    decoder,
    read_rotary,
    rope_table,
    turned,
    window,
    words,
    write_rope,
)
from .keys import Section
from .mixtral import WEIGHTS
from .phi import short_context, write_context
from .recipe import ConfigReader, Settings, page
from .sparse_mixer import SparseMixerMoE


def _positions(raw: ConfigReader) -> Rotary:
    """Rotary positions; a longrope table says the size of what turns, ``short_mscale``."""
    rotary = read_rotary(raw, 1e6, kinds=("default", *LONGROPE))
    rope = rope_table(raw)
    if rope is None or not isinstance(rotary.scaling, LongRopeScaling):
        return rotary
    size = rope.number("short_mscale", least=1e-3, most=1e3)
    rope.only("long_mscale", size, "texts of each length have one size")
    return replace(rotary, scaling=replace(rotary.scaling, attention_factor=size))


def _write_rope(model: Model) -> Settings:
    raw = write_rope(model)
    for scaling in model.long_scalings.values():
        size = scaling.attention_factor
        raw["rope_scaling"] |= {"short_mscale": size, "long_mscale": size}
    return raw


page(
    "phimoe",
    words=words(
        decoder(
            Attention(1, bias=True),
            SparseMixerMoE(2, 2, GatedMLP(1)),
            LayerNorm(),
            head=Head(tied=False, bias=True),
        ),
        window(),
        turned(_positions),
        Section(short_context, lambda model: write_context(model) if model.long_scalings else {}),
        without="head_dim",
        rope=Section(encode=_write_rope),
        max_position_embeddings=131_072,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        attention_bias=False,
        lm_head_bias=(False, "head.bias"),
        num_local_experts=16,
        num_experts_per_tok=2,
        router_jitter_noise=(0.01, "feedforward.tolerance"),
        router_aux_loss_coef=0.001,
    ),
    weights=WEIGHTS,
)

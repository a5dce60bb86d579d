"""Phi-3.5 MoE: layer norms with biases, and sixteen experts of which a sparse mixer takes two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    LayerNorm,
    LongRopeScaling,
    Model,
    Rotary,
    Stack,
)
from ..core.config.model import long_scalings
from . import decoders
from .decoders import ATTN, FFN
from .keys import Key, read_keys
from .mixtral import WEIGHTS
from .recipe import ConfigReader, Recipe
from .sparse_mixer import SparseMixerMoE


def phimoe(dim: int, depth: int, heads: int, hidden: int, experts: int) -> Decoder:
    """The shape of Phi-3.5 MoE: 8 key-value heads, 32,064 tokens, 4,096 positions."""
    mixture = SparseMixerMoE(experts, 2, GatedMLP(hidden), balance_loss=0.001)
    block = Block(Attention(heads, 8, bias=True), mixture, LayerNorm())
    stack = Stack(depth, (block,), Rotary(), last_norm=LayerNorm())
    return Decoder(dim, 4096, Embed(32_064), stack, Head(tied=False, bias=True), decoders.INIT)


def _positions(raw: ConfigReader) -> Rotary:
    """Rotary positions; a longrope table says the size of what turns, ``short_mscale``."""
    rotary = decoders.read_rotary(raw, 1e6, kinds=("default", *decoders.LONGROPE))
    rope = raw.inside("rope_parameters") or raw.inside("rope_scaling")
    if rope is None or not isinstance(rotary.scaling, LongRopeScaling):
        return rotary
    size = rope.number("short_mscale", least=1e-3, most=1e3)
    rope.only("long_mscale", size, "texts of each length have one size")
    return replace(rotary, scaling=replace(rotary.scaling, attention_factor=size))


KEYS = decoders.without(
    decoders.keys(
        Key.only("input_jitter_noise", 0.0, "no router here shakes what it reads"),
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        Key.flag("lm_head_bias", "head.bias", False),
        *decoders.expert_keys("num_local_experts", 16, 2),
        Key.number("router_jitter_noise", f"{FFN}.tolerance", 0.01, most=1e3),
        decoders.window(),
        context=131_072,
        kv_heads=8,
        mlp=f"{FFN}.expert",
        eps=decoders.eps("rms_norm_eps", 1e-5),
        rotary=Key("", "decoder.position", _positions),
    ),
    "head_dim",
)


def read_config(raw: ConfigReader) -> Model:
    """A Phi-3.5 MoE config.json as our config; its context is what its short factors are right for."""
    model = read_keys(raw, phimoe(4096, 32, 32, 6400, 16), KEYS)
    lengths = [scaling.original_context for scaling in long_scalings(model).values()]
    return replace(model, context=min([model.context, *lengths]))


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Phi-3.5 MoE config.json, as far as that can say it."""
    raw = decoders.write(model, KEYS)
    for scaling in long_scalings(model).values():
        raw["original_max_position_embeddings"] = raw["max_position_embeddings"]
        raw["max_position_embeddings"] = round(scaling.original_context * scaling.factor)
        size = scaling.attention_factor
        raw["rope_scaling"] |= {"short_mscale": size, "long_mscale": size}
    return raw


PHIMOE = Recipe(
    name="phimoe",
    paper="Abdin et al. 2024, Phi-3 Technical Report (arXiv 2404.14219)",
    sizes={"3.5": phimoe(4096, 32, 32, 6400, 16)},
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM", "PhimoeModel"),
    model_type="phimoe",
    tokenizer="microsoft/Phi-3.5-MoE-instruct",
    read_config=read_config,
    write_config=write_config,
    weights=WEIGHTS,
)

"""GLM-4.5: a Llama of which half of each head turns, with a routed mixture after its first blocks."""

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
    Model,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders, mixtures
from .decoders import ATTN
from .keys import Key, read_keys
from .recipe import ConfigReader, Recipe, tile
from .routed import RoutedMoE

NORM = RMSNorm(1e-5)
MIXTURE = RoutedMoE(128, 8, GatedMLP(1408), shared=GatedMLP(1408))


def glm4_moe(
    dim: int, depth: int, hidden: int, mixture: RoutedMoE, dense: int, qk_norm: RMSNorm | None
) -> Decoder:
    """The shape of GLM-4.5: 96 heads and 8 key-value heads of 128, 151,552 tokens, 131,072
    positions."""
    attention = Attention(96, 8, 128, bias=True, out_bias=False, qk_norm=qk_norm)
    block = Block(attention, GatedMLP(hidden), NORM)
    mixes = replace(block, feedforward=mixture)
    pattern = tile([block] * dense + [mixes] * (depth - dense))
    stack = Stack(depth, pattern, Rotary(1e6, 0.5), last_norm=NORM)
    return Decoder(dim, 131_072, Embed(151_552), stack, Head(tied=False), decoders.INIT)


def _qk_norm(raw: ConfigReader) -> RMSNorm | None:
    eps = raw.number("rms_norm_eps", 1e-5, most=1.0)
    return RMSNorm(eps) if raw.flag("use_qk_norm", False) else None


KEYS = decoders.keys(
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    Key("use_qk_norm", f"{ATTN}.qk_norm", _qk_norm, lambda norm: norm is not None),
    context=131_072,
    kv_heads=8,
    eps=decoders.eps("rms_norm_eps", 1e-5),
    rotary=decoders.part_rotary(0.5),
)
AIR = glm4_moe(4096, 46, 10_944, MIXTURE, 1, None)
_STACK = decoders.stack(AIR)
_PLAIN = replace(AIR, decoder=replace(_STACK, depth=1, pattern=_STACK.pattern[:1]))


def read_config(raw: ConfigReader) -> Decoder:
    """A GLM-4.5 config.json as our config."""
    model = read_keys(raw, _PLAIN, KEYS)
    mlp = decoders.first_block(model).feedforward
    assert isinstance(mlp, GatedMLP)
    mixture = mixtures.read_mixture(raw, mlp, MIXTURE, mixtures.ROUTED | mixtures.GROUPS)
    return mixtures.with_mixture(raw, model, mixture, 1)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GLM-4.5 config.json, as far as that can say it."""
    raw = {**decoders.write(model, KEYS), **mixtures.write_mixture(model, "glm4_moe")}
    return {**raw, "num_nextn_predict_layers": 0}


GLM4_MOE = Recipe(
    name="glm4_moe",
    paper="GLM-4.5 Team 2025, GLM-4.5: Agentic, Reasoning, and Coding Foundation Models (arXiv "
    "2508.06471)",
    sizes={
        "4.5-air": AIR,
        "4.5": glm4_moe(
            5120,
            92,
            12_288,
            RoutedMoE(160, 8, GatedMLP(1536), shared=GatedMLP(1536), scale=2.5),
            3,
            NORM,
        ),
    },
    architectures=("Glm4MoeForCausalLM", "Glm4MoeModel"),
    model_type="glm4_moe",
    tokenizer="zai-org/GLM-4.5-Air",
    read_config=read_config,
    write_config=write_config,
    weights=mixtures.table({**decoders.ATTENTION, **decoders.QK_NORMS}),
)

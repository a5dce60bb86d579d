"""OLMo 2 and 3: what a sublayer adds is normed, and queries and keys of all heads at once.

OLMo 3 slides a window in three of four blocks. OLMoE is a Llama with OLMo 2's queries and keys, and
experts.
"""

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
    MoE,
    RMSNorm,
    Rotary,
    Stack,
    Window,
    YarnScaling,
)
from . import decoders, mixtures
from .decoders import ATTN, FFN
from .keys import MOST_POSITIONS, Key, read_keys
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-6)
THETA3 = 500_000.0  # of both kinds of block


def olmo2(dim: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None) -> Decoder:
    """The shape of OLMo 2: 100,352 tokens, 4,096 positions."""
    attention = Attention(heads, kv_heads, qk_norm=NORM, qk_norm_whole=True)
    block = Block(attention, GatedMLP(hidden), NORM, place="output")
    stack = Stack(depth, (block,), Rotary(500_000.0), last_norm=NORM)
    return Decoder(dim, 4096, Embed(100_352), stack, Head(tied=False), decoders.INIT)


KEYS = decoders.keys(
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    context=2048,
    eps=decoders.eps("rms_norm_eps", 1e-5, f"{ATTN}.qk_norm.eps"),
)
read_config = decoders.config_reader(olmo2(2048, 16, 16, 8192), KEYS)
write_config = decoders.writer(KEYS)

_NORMED = {**decoders.ATTENTION, **decoders.QK_NORMS}
LAYERS = {
    **_NORMED,
    **decoders.GATED,
    "attn_norm": "post_attention_layernorm",
    "ffn_norm": "post_feedforward_layernorm",
}
OLMO2 = Recipe(
    name="olmo2",
    paper="OLMo Team 2024, 2 OLMo 2 Furious (arXiv 2501.00656)",
    sizes={
        "1b": olmo2(2048, 16, 16, 8192),
        "7b": olmo2(4096, 32, 32, 11_008),
        "13b": olmo2(5120, 40, 40, 13_824),
        "32b": olmo2(5120, 64, 40, 27_648, kv_heads=8),
    },
    architectures=("Olmo2ForCausalLM", "Olmo2Model"),
    model_type="olmo2",
    tokenizer="allenai/OLMo-2-0425-1B",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(LAYERS),
)


def olmo3(dim: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None) -> Decoder:
    """The shape of OLMo 3: windows of 4,096 in three of four blocks, 100,278 tokens, 65,536
    positions."""
    plain = olmo2(dim, depth, heads, hidden, kv_heads)
    full = decoders.first_block(plain)
    slides = replace(
        full, attention=replace(full.attention, mask=Window(4096)), position=Rotary(THETA3)
    )
    yarn = YarnScaling(8.0, 8192, 32.0, 1.0, 1.2079441541679836)
    stack = replace(
        decoders.stack(plain),
        pattern=(slides, slides, slides, full),
        position=Rotary(THETA3, scaling=yarn),
    )
    return replace(plain, context=65_536, embed=Embed(100_278), decoder=stack)


def _positions3(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others; a scaling of version 4 of transformers
    is of the others alone."""
    if raw.inside("rope_parameters") is not None:
        return decoders.read_schemes(raw, THETA3, THETA3)
    raw.only("rope_theta", THETA3, "every OLMo 3 has that of 500,000")
    return Rotary(THETA3), decoders.read_rotary(raw, THETA3)


KEYS3 = decoders.keys(
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    context=2048,
    eps=decoders.eps("rms_norm_eps", 1e-5, f"{ATTN}.qk_norm.eps"),
    rotary=Key("", "decoder.position", lambda raw: _positions3(raw)[1]),
)


def read_config3(raw: ConfigReader) -> Model:
    """An OLMo 3 config.json as our config."""
    model = read_keys(raw, olmo2(4096, 32, 32, 11_008), KEYS3)
    size = raw.integer(
        "sliding_window", decoders.unsaid(raw, "sliding_window", 4096), most=MOST_POSITIONS
    )
    slides = [(i + 1) % 4 != 0 for i in range(model.decoder.depth)]
    blocks = decoders.with_masks(model, decoders.read_windows(raw, size, slides))
    return decoders.with_blocks(model, decoders.with_local(model, blocks, _positions3(raw)[0]))


def write_config3(model: Model) -> dict[str, Any]:
    """Our config as an OLMo 3 config.json, as far as that can say it."""
    raw = decoders.write(model, KEYS3)
    theta, scaling = raw.pop("rope_theta"), raw.pop("rope_scaling")
    local = decoders.local_scheme(model) or Rotary(THETA3)
    tables = {
        "full_attention": {"rope_type": "default", **(scaling or {}), "rope_theta": theta},
        "sliding_attention": {"rope_type": "default", "rope_theta": local.theta},
    }
    return {
        **raw,
        "rope_parameters": tables,
        "sliding_window": decoders.window_size(model) or 4096,
        "layer_types": decoders.write_windows(model),
    }


OLMO3 = Recipe(
    name="olmo3",
    paper="OLMo Team 2025, Olmo 3 (arXiv 2512.13961)",
    sizes={
        "7b": olmo3(4096, 32, 32, 11_008),
        "32b": olmo3(5120, 64, 40, 27_648, kv_heads=8),
    },
    architectures=("Olmo3ForCausalLM", "Olmo3Model"),
    model_type="olmo3",
    tokenizer="allenai/Olmo-3-1025-7B",
    read_config=read_config3,
    write_config=write_config3,
    weights=decoders.table(LAYERS),
)


def olmoe(dim: int, depth: int, heads: int, experts: MoE) -> Decoder:
    """The shape of OLMoE: 50,304 tokens, 4,096 positions."""
    norm = RMSNorm(1e-5)
    attention = Attention(heads, qk_norm=norm, qk_norm_whole=True)
    stack = Stack(depth, (Block(attention, experts, norm),), Rotary(), last_norm=norm)
    return Decoder(dim, 4096, Embed(50_304), stack, Head(tied=False), decoders.INIT)


KEYSMOE = decoders.keys(
    Key.only("clip_qkv", None, "queries, keys and values here are not clipped"),
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    *decoders.expert_keys("num_experts", 64, 8, 0.01),
    Key.flag("norm_topk_prob", f"{FFN}.normalize", False),
    context=4096,
    mlp=f"{FFN}.expert",
    eps=decoders.eps("rms_norm_eps", 1e-5, f"{ATTN}.qk_norm.eps"),
)
KEYSMOE = decoders.without(KEYSMOE, "head_dim")
_EXPERTS = MoE(64, 8, GatedMLP(1024), normalize=False, balance_loss=0.01)

OLMOE = Recipe(
    name="olmoe",
    paper="Muennighoff et al. 2024, OLMoE: Open Mixture-of-Experts Language Models (arXiv "
    "2409.02060)",
    sizes={"1b-7b": olmoe(2048, 16, 16, _EXPERTS)},
    architectures=("OlmoeForCausalLM", "OlmoeModel"),
    model_type="olmoe",
    tokenizer="allenai/OLMoE-1B-7B-0924",
    read_config=decoders.config_reader(olmoe(2048, 16, 16, _EXPERTS), KEYSMOE),
    write_config=decoders.writer(KEYSMOE),
    weights=decoders.table(
        {**_NORMED, **decoders.NORMS, "ffn.router": "mlp.gate"}, *mixtures.EXPERTS
    ),
)

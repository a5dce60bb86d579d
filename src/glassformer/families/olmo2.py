"""OLMo 2: what a sublayer adds is normed, and queries and keys of all heads at once."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import ATTN
from .keys import Key
from .recipe import Recipe

NORM = RMSNorm(1e-6)


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
    weights=decoders.table(
        {
            **decoders.ATTENTION,
            **decoders.GATED,
            "attn.q_norm": "self_attn.q_norm",
            "attn.k_norm": "self_attn.k_norm",
            "attn_norm": "post_attention_layernorm",
            "ffn_norm": "post_feedforward_layernorm",
        }
    ),
)

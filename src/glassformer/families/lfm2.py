"""LFM2: short convolutions between gates, and grouped attention in some of the blocks."""

from __future__ import annotations

from collections.abc import Sequence
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
from . import decoders
from .decoders import ATTN, FFN
from .keys import MOST_HIDDEN, Key, read_keys, read_part, write_part
from .mixers import ShortConv
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-5)
KINDS = ("conv", "full_attention")
WORDS = {"conv_L_cache": "kernel", "conv_bias": "bias"}


def lfm2(dim: int, heads: int, hidden: int, attends: Sequence[int], depth: int = 16) -> Decoder:
    """The shape of LFM2: 8 key-value heads, 65,536 tokens, 128,000 positions."""
    mixer: Any = ShortConv()
    full = Block(Attention(heads, 8, qk_norm=NORM), GatedMLP(hidden), NORM)
    conv = replace(full, attention=mixer)
    blocks = tuple(full if i in attends else conv for i in range(depth))
    stack = Stack(depth, blocks, Rotary(1e6), last_norm=NORM)
    return Decoder(dim, 128_000, Embed(65_536), stack, Head(), decoders.INIT)


def _hidden(raw: ConfigReader) -> int:
    """The width of the feed-forward, which a file may say before it is adjusted."""
    size = raw.integer("intermediate_size", 12_288, most=MOST_HIDDEN)
    size = raw.integer("block_ff_dim", size, most=MOST_HIDDEN)
    multiplier = raw.number("block_ffn_dim_multiplier", 1.0, most=100.0)
    multiple = raw.integer("block_multiple_of", 256, most=MOST_HIDDEN)
    if not raw.flag("block_auto_adjust_ff_dim", True):
        return int(size)
    adjusted = int(multiplier * int(2 * size / 3))
    return int(-(-adjusted // multiple) * multiple)


def _tied(raw: ConfigReader) -> bool:
    return raw.flag("tie_embedding", raw.flag("tie_word_embeddings", True))


_SHARED = decoders.keys(
    context=128_000,
    kv_heads=8,
    eps=decoders.eps("norm_eps", 1e-5, f"{ATTN}.qk_norm.eps"),
    rotary=decoders.rotary(1e6),
)
KEYS = (
    *decoders.without(_SHARED, "hidden_act intermediate_size tie_word_embeddings"),
    Key("intermediate_size", f"{FFN}.hidden", _hidden),
    Key("tie_word_embeddings", "head.tied", _tied),
)


def read_config(raw: ConfigReader) -> Any:
    """An LFM2 config.json as our config."""
    model = read_keys(raw, lfm2(2560, 32, 8192, (0,), 1), KEYS)
    depth = model.decoder.depth
    attends = raw.value("full_attn_idxs", list(range(depth)))
    raw.must(isinstance(attends, list), "full_attn_idxs", "a list of blocks' numbers")
    usual = [KINDS[i in attends] for i in range(depth)]
    return decoders.read_hybrid(raw, model, read_part(raw, ShortConv(), WORDS), KINDS, usual)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as an LFM2 config.json, as far as that can say it."""
    kinds = decoders.write_kinds(model, KINDS)
    return {
        **decoders.write(decoders.with_attention_first(model, "lfm2"), KEYS),
        "block_auto_adjust_ff_dim": False,
        **write_part(decoders.first_mixer(model, ShortConv()), WORDS),
        "layer_types": kinds,
        "full_attn_idxs": [i for i, kind in enumerate(kinds) if kind == "full_attention"],
    }


LFM2 = Recipe(
    name="lfm2",
    paper="Liquid AI 2025, LFM2 Technical Report (arXiv 2511.23404)",
    sizes={
        "350m": lfm2(1024, 16, 4608, (2, 5, 8, 10, 12, 14)),
        "700m": lfm2(1536, 24, 6912, (2, 5, 8, 10, 12, 14)),
        "1.2b": lfm2(2048, 32, 8192, (2, 5, 8, 10, 12, 14)),
    },
    architectures=("Lfm2ForCausalLM", "Lfm2Model"),
    model_type="lfm2",
    tokenizer="LiquidAI/LFM2-350M",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {
            "attn.q": "self_attn.q_proj",
            "attn.k": "self_attn.k_proj",
            "attn.v": "self_attn.v_proj",
            "attn.out": "self_attn.out_proj",
            "attn.q_norm": "self_attn.q_layernorm",
            "attn.k_norm": "self_attn.k_layernorm",
            "attn.in_proj": "conv.in_proj",
            "attn.conv": "conv.conv",
            "attn.out_proj": "conv.out_proj",
            "attn_norm": "operator_norm",
            "ffn_norm": "ffn_norm",
            "ffn.gate": "feed_forward.w1",
            "ffn.up": "feed_forward.w3",
            "ffn.down": "feed_forward.w2",
        },
        last_norm="model.embedding_norm",
    ),
)

"""LFM2: short convolutions between gates, and grouped attention in some of the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.config import Attention, RMSNorm
from .decoder_pages import (
    attention,
    decoder,
    listed,
    numbers,
    read_numbers,
    rotary,
    table,
    variant,
    words,
)
from .keys import MOST_HIDDEN, Key, Section
from .mixers import ShortConv
from .recipe import ConfigReader, Settings, page


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


def _convolves(raw: ConfigReader, depth: int) -> list[bool]:
    attends = read_numbers(raw, "full_attn_idxs", range(depth))
    return [i not in attends for i in range(depth)]


def _write_kinds(convolves: Sequence[bool]) -> Settings:
    return {**_KINDS.encode(convolves), "full_attn_idxs": numbers(convolves, False)}


_KINDS = listed("conv", "full_attention", _convolves)

page(
    "lfm2",
    words=words(
        decoder(Attention(1, qk_norm=RMSNorm())),
        Key("intermediate_size", "feedforward.hidden", _hidden),
        Key(
            "tie_word_embeddings",
            "head.tied",
            lambda raw: raw.flag("tie_embedding", raw.flag("tie_word_embeddings", True)),
        ),
        rotary(1e6),
        Section(encode=lambda model: {"block_auto_adjust_ff_dim": False}),
        variant(
            "attention",
            ShortConv(),
            replace(_KINDS, encode=_write_kinds),
            conv_L_cache="kernel",
            conv_bias="bias",
        ),
        without="hidden_act intermediate_size tie_word_embeddings",
        max_position_embeddings=128_000,
        num_key_value_heads=8,
        norm_eps=1e-5,
    ),
    weights=table(
        {
            **attention(out="out_proj"),
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

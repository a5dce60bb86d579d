"""Gemma 1 and 2: embeddings scaled by sqrt(dim), gains around one, a GELU gate, wide heads.

Gemma 2 norms before and after each part, caps its scores and logits, and lets every other block see
a window only.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.config import Attention, Block, Decoder, Full, GatedMLP, Head, RMSNorm, Rotary, Window
from .decoder_pages import ATTENTION, GATED, LLAMA_TABLE, decoder, table, windows, words
from .keys import ACTIVATIONS, Key, act_name, key, nullable, only
from .recipe import Recipe

NORM = RMSNorm(1e-6, offset=1.0)


def gemma(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Gemma: heads of 256, 256,000 tokens, 8,192 positions."""
    block = Block(Attention(heads, kv_heads, 256), GatedMLP(hidden, "gelu_tanh"), NORM)
    return decoder(dim, depth, 8192, 256_000, block, Rotary(), Head(), scale=dim**0.5)


def gemma2(
    dim: int, depth: int, heads: int, hidden: int, head_dim: int = 256, over: int = 256
) -> Decoder:
    """The shape of Gemma 2: half as many key-value heads as heads, scores divided by sqrt(over),
    windows of 4,096."""
    attention = Attention(heads, heads // 2, head_dim, scale=over**-0.5, softcap=50.0)
    pattern = tuple(
        Block(
            replace(attention, mask=mask_rule),
            GatedMLP(hidden, "gelu_tanh"),
            NORM,
            place="sandwich",
        )
        for mask_rule in (Window(4096), Full())
    )
    return decoder(dim, depth, 8192, 256_000, pattern, Rotary(), Head(softcap=30.0), scale=dim**0.5)


SHARED = (
    only("use_bidirectional_attention", False, "a decoder here sees what came before"),
    Key("", "embed.scale", lambda raw: raw.integer("hidden_size") ** 0.5),
    key("attention_bias", False),
)
ACTS = {**ACTIVATIONS, "gelu": "gelu_tanh"}  # has always meant the approximation
WORDS = words(
    gemma(2048, 18, 8, 1, 16_384),
    Key(
        "hidden_act",
        "feedforward.act",
        lambda raw: raw.choice("hidden_act", ACTS, "gelu_pytorch_tanh"),
        act_name,
    ),
    *SHARED,
    max_position_embeddings=8192,
    num_key_value_heads=16,
    head_dim=256,
    tie_word_embeddings=True,
)
QUERY_SCALE = Key(
    "query_pre_attn_scalar",
    "attention.scale",
    lambda raw: raw.number("query_pre_attn_scalar", 256.0, least=1e-6) ** -0.5,
    lambda scale: round(scale**-2),
)
WORDS2 = words(
    gemma2(2304, 2, 8, 9216),
    key("hidden_activation hidden_act", "gelu_pytorch_tanh"),
    *SHARED,
    QUERY_SCALE,
    nullable("attn_logit_softcapping", 50.0, "attention.softcap"),
    nullable("final_logit_softcapping", 30.0, "head.softcap"),
    windows(every=2),
    even="gemma2",
    max_position_embeddings=8192,
    num_key_value_heads=4,
    head_dim=256,
    tie_word_embeddings=True,
)

GEMMA = Recipe(
    name="gemma",
    paper="Gemma Team 2024, Gemma: Open Models Based on Gemini Research and Technology (arXiv "
    "2403.08295)",
    sizes={"2b": gemma(2048, 18, 8, 1, 16_384), "7b": gemma(3072, 28, 16, 16, 24_576)},
    tokenizer="google/gemma-2b",
    words=WORDS,
    family="Gemma",
    weights=LLAMA_TABLE,
)

SANDWICH = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
GEMMA2 = Recipe(
    name="gemma2",
    paper="Gemma Team 2024, Gemma 2: Improving Open Language Models at a Practical Size (arXiv "
    "2408.00118)",
    sizes={
        "2b": gemma2(2304, 26, 8, 9216),
        "9b": gemma2(3584, 42, 16, 14_336),
        "27b": gemma2(4608, 46, 32, 36_864, head_dim=128, over=144),
    },
    tokenizer="google/gemma-2-2b",
    words=WORDS2,
    family="Gemma2",
    weights=table(ATTENTION, GATED, SANDWICH),
)

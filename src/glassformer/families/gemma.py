"""Gemma 1 and 2: embeddings scaled by sqrt(dim), gains around one, a GELU gate, wide heads.

Gemma 2 norms before and after each part, caps its scores and logits, and lets every other block see
a window only.
"""

from __future__ import annotations

from ..core.config import RMSNorm
from .decoder_pages import ATTENTION, GATED, LLAMA_TABLE, decoder, table, windows, words
from .keys import ACTIVATIONS, Key, act_name, key, nullable
from .recipe import page

NORM = RMSNorm(1e-6, offset=1.0)


SHARED = (
    Key("", "embed.scale", lambda raw: raw.integer("hidden_size") ** 0.5),
    key("attention_bias", False),
)
ACTS = {**ACTIVATIONS, "gelu": "gelu_tanh"}  # has always meant the approximation
QUERY_SCALE = Key(
    "query_pre_attn_scalar",
    "attention.scale",
    lambda raw: raw.number("query_pre_attn_scalar", 256.0, least=1e-6) ** -0.5,
    lambda scale: round(scale**-2),
)

page(
    "gemma",
    words=words(
        decoder(norm=NORM),
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
    ),
    weights=LLAMA_TABLE,
)

SANDWICH = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
page(
    "gemma2",
    words=words(
        decoder(norm=NORM, place="sandwich"),
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
    ),
    weights=table(ATTENTION, GATED, SANDWICH),
)

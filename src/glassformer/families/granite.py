"""Granite: a Llama with four multipliers: of embeddings, scores, what is added to the stream, and
logits."""

from __future__ import annotations

from .decoder_pages import LLAMA_TABLE, decoder, words
from .keys import Key, keys
from .recipe import page

MULTIPLIERS = keys(
    attention_bias=False,
    embedding_multiplier=(1.0, "embed.scale"),
    attention_multiplier=(1.0, "attention.scale"),
    residual_multiplier=(1.0, "residual_scale"),
    logits_scaling=Key(
        "logits_scaling",
        "head.scale",
        lambda raw: 1 / raw.number("logits_scaling", 1.0, least=1e-9),
        lambda scale: round(1 / scale, 9),
    ),
)

page(
    "granite",
    words=words(
        decoder(),
        *MULTIPLIERS,
        max_position_embeddings=2048,
        mlp_bias=False,
    ),
    weights=LLAMA_TABLE,
)

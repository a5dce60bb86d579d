"""Granite: a Llama with four multipliers: of embeddings, scores, what is added to the stream, and
logits."""

from __future__ import annotations

from ..core.config import Attention, Block, GatedMLP, RMSNorm, Rotary
from .decoder_pages import LLAMA_TABLE, decoder, words
from .keys import Key, keys
from .recipe import Recipe, sizes

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
WORDS = words(
    decoder(Block(Attention(1), GatedMLP(1), RMSNorm()), Rotary()),
    *MULTIPLIERS,
    max_position_embeddings=2048,
    mlp_bias=False,
)

GRANITE = Recipe(
    name="granite",
    paper="Granite Team, IBM 2024, Granite 3.0 Language Models",
    sizes=sizes(
        """
        hidden_size intermediate_size attention_multiplier logits_scaling
        3.0-2b 2048 8192  0.015625  8.0
        3.0-8b 4096 12800 0.0078125 16.0
        """,
        num_hidden_layers=40,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        vocab_size=49_155,
        tie_word_embeddings=True,
        rms_norm_eps=1e-05,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
    ),
    tokenizer="ibm-granite/granite-3.0-2b-base",
    words=WORDS,
    family="Granite",
    weights=LLAMA_TABLE,
)

"""Granite: a Llama with four multipliers: of embeddings, scores, what is added to the stream, and
logits."""

from __future__ import annotations

from ..core.config import Attention, Block, Decoder, GatedMLP, Head, RMSNorm, Rotary
from .decoder_pages import LLAMA_TABLE, decoder, words
from .keys import Key, keys
from .recipe import Recipe


def granite(dim: int, hidden: int, scale: float, divisor: float) -> Decoder:
    """The shape of Granite 3: 40 blocks, 32 heads, 49,155 tokens, 4,096 positions."""
    attention = Attention(32, 8, scale=scale)
    block = Block(attention, GatedMLP(hidden), RMSNorm(), residual_scale=0.22)
    head = Head(scale=1 / divisor)
    return decoder(dim, 40, 4096, 49_155, block, Rotary(), head, scale=12.0)


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
    granite(2048, 8192, 1 / 64, 8.0), *MULTIPLIERS, max_position_embeddings=2048, mlp_bias=False
)

GRANITE = Recipe(
    name="granite",
    paper="Granite Team, IBM 2024, Granite 3.0 Language Models",
    sizes={
        "3.0-2b": granite(2048, 8192, 1 / 64, 8.0),
        "3.0-8b": granite(4096, 12_800, 1 / 128, 16.0),
    },
    tokenizer="ibm-granite/granite-3.0-2b-base",
    words=WORDS,
    family="Granite",
    weights=LLAMA_TABLE,
)

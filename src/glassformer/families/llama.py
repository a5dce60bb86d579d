"""Llama 2, 3, 3.1 and 3.2: RMSNorm, rotary positions, grouped queries, a SiLU gate, no biases."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    Decoder,
    GatedMLP,
    Head,
    Llama3Scaling,
    RMSNorm,
    RopeScaling,
    Rotary,
)
from .decoder_pages import LLAMA_TABLE, decoder, words
from .recipe import Recipe


def llama2(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Llama 2: 32,000 tokens, 4,096 positions."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm())
    return decoder(dim, depth, 4096, 32_000, block, Rotary())


def llama3(
    dim: int,
    depth: int,
    heads: int,
    hidden: int,
    scaling: RopeScaling | None = None,
    tied: bool = False,
) -> Decoder:
    """The shape of Llama 3: 8 key-value heads, 128,256 tokens, 8,192 positions or, with a scaling,
    131,072."""
    block = Block(Attention(heads, 8), GatedMLP(hidden), RMSNorm())
    context, position = 131_072 if scaling else 8192, Rotary(500_000.0, scaling=scaling)
    return decoder(dim, depth, context, 128_256, block, position, Head(tied=tied))


def stories(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of the TinyStories models of llama2.c: 512 tokens, 512 positions."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm())
    return decoder(dim, depth, 512, 512, block, Rotary(), Head())


WORDS = words(
    stories(64, 5, 8, 4, 172),
    even="llama",
    max_position_embeddings=2048,
    attention_bias=False,
    mlp_bias=False,
)
read_config, write_config = WORDS.decode, WORDS.encode

_31, _32 = Llama3Scaling(8.0), Llama3Scaling(32.0)

LLAMA = Recipe(
    name="llama",
    paper="Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, The Llama 3 Herd of Models "
    "(arXiv 2407.21783)",
    sizes={
        "2-7b": llama2(4096, 32, 32, 32, 11_008),
        "2-13b": llama2(5120, 40, 40, 40, 13_824),
        "2-70b": llama2(8192, 80, 64, 8, 28_672),
        "3-8b": llama3(4096, 32, 32, 14_336),
        "3-70b": llama3(8192, 80, 64, 28_672),
        "3-405b": llama3(16_384, 126, 128, 53_248, _31),  # published as 3.1 only
        "3.1-8b": llama3(4096, 32, 32, 14_336, _31),
        "3.1-70b": llama3(8192, 80, 64, 28_672, _31),
        "3.1-405b": llama3(16_384, 126, 128, 53_248, _31),
        "3.2-1b": llama3(2048, 16, 32, 8192, _32, tied=True),
        "3.2-3b": llama3(3072, 28, 24, 8192, _32, tied=True),
        "stories260k": stories(64, 5, 8, 4, 172),
    },
    tokenizer="the tokenizer.model beside the published weights",
    checkpoint="HuggingFaceTB/SmolLM2-135M",
    words=WORDS,
    family="Llama",
    weights=LLAMA_TABLE,
)

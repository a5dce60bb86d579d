"""Llama 2, 3, 3.1 and 3.2: RMSNorm, rotary positions, grouped queries, a SiLU gate, no biases."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    GatedMLP,
    Llama3Scaling,
    RMSNorm,
    Rotary,
)
from .decoder_pages import LLAMA_TABLE, decoder, words, write_scaling
from .recipe import Recipe, sizes

WORDS = words(
    decoder(Block(Attention(1), GatedMLP(1), RMSNorm()), Rotary()),
    even="llama",
    max_position_embeddings=2048,
    attention_bias=False,
    mlp_bias=False,
)
read_config, write_config = WORDS.decode, WORDS.encode


LLAMA = Recipe(
    name="llama",
    paper="Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, The Llama 3 Herd of Models "
    "(arXiv 2407.21783)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size \
        max_position_embeddings vocab_size num_key_value_heads rope_theta tie_word_embeddings
        2-7b        4096 32 32 11008 4096 32000  - -        -
        2-13b       5120 40 40 13824 4096 32000  - -        -
        2-70b       8192 80 64 28672 4096 32000  8 -        -
        3-8b        4096 32 32 14336 8192 128256 8 500000.0 -
        3-70b       8192 80 64 28672 8192 128256 8 500000.0 -
        stories260k 64   5  8  172   512  512    4 -        true
        """,
        rms_norm_eps=1e-05,
    )
    | sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size
        3-405b   16384 126 128 53248
        3.1-8b   4096  32  32  14336
        3.1-70b  8192  80  64  28672
        3.1-405b 16384 126 128 53248
        """,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        vocab_size=128_256,
        rms_norm_eps=1e-05,
        rope_theta=500000.0,
        rope_scaling=write_scaling(Llama3Scaling(8.0)),
    )
    | sizes(
        """
        hidden_size num_hidden_layers num_attention_heads
        3.2-1b 2048 16 32
        3.2-3b 3072 28 24
        """,
        num_key_value_heads=8,
        intermediate_size=8192,
        max_position_embeddings=131_072,
        vocab_size=128_256,
        tie_word_embeddings=True,
        rms_norm_eps=1e-05,
        rope_theta=500000.0,
        rope_scaling=write_scaling(Llama3Scaling(32.0)),
    ),
    tokenizer="the tokenizer.model beside the published weights",
    checkpoint="HuggingFaceTB/SmolLM2-135M",
    words=WORDS,
    family="Llama",
    weights=LLAMA_TABLE,
)

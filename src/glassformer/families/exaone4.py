"""EXAONE 4: what a sublayer adds is normed; the larger one slides a window in three of four blocks,
and the fourth knows no positions."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    GatedMLP,
    Llama3Scaling,
    RMSNorm,
    Rotary,
)
from .decoder_pages import (
    ATTENTION,
    GATED,
    OUTPUT_NORMS,
    QK_NORMS,
    decoder,
    table,
    windows,
    words,
    write_scaling,
)
from .recipe import Recipe, sizes

WORDS = words(
    decoder(
        Block(Attention(1, qk_norm=RMSNorm()), GatedMLP(1), RMSNorm(), place="output"), Rotary()
    ),
    # beside windows, what sees everything has no positions
    windows(word="sliding_window_pattern", still=True, optional=True),
    max_position_embeddings=2048,
    num_key_value_heads=32,
    rms_norm_eps=1e-5,
)

EXAONE4 = Recipe(
    name="exaone4",
    paper="LG AI Research 2025, EXAONE 4.0 (arXiv 2507.11407)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size \
        max_position_embeddings tie_word_embeddings sliding_window
        1.2b 2048 30 32 4096  65536  true null
        32b  5120 64 40 27392 131072 -    -
        """,
        num_key_value_heads=8,
        vocab_size=102_400,
        rope_theta=1000000.0,
        rope_scaling=write_scaling(Llama3Scaling(16.0)),
    ),
    tokenizer="LGAI-EXAONE/EXAONE-4.0-1.2B",
    words=WORDS,
    family="Exaone4",
    weights=table(ATTENTION, GATED, QK_NORMS, OUTPUT_NORMS),
)

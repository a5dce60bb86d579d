"""EXAONE 4: what a sublayer adds is normed; the larger one slides a window in three of four blocks,
and the fourth knows no positions."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import (
    Attention,
    Block,
    Decoder,
    GatedMLP,
    Head,
    Llama3Scaling,
    NoPosition,
    RMSNorm,
    Rotary,
    Window,
)
from .decoder_pages import ATTENTION, GATED, OUTPUT_NORMS, QK_NORMS, decoder, table, windows, words
from .recipe import Recipe

NORM = RMSNorm(1e-5)


def exaone4(
    dim: int, depth: int, heads: int, head_dim: int, hidden: int, context: int, slides: bool
) -> Decoder:
    """The shape of EXAONE 4: 8 heads of keys and values, 102,400 tokens."""
    attention = Attention(heads, 8, head_dim, qk_norm=NORM)
    block = Block(attention, GatedMLP(hidden), NORM, place="output")
    windowed = replace(block, attention=replace(attention, mask=Window(4096)))
    still = replace(block, position=NoPosition())
    pattern = (windowed, windowed, windowed, still) if slides else (block,)
    position = Rotary(1e6, scaling=Llama3Scaling(16.0))
    return decoder(dim, depth, context, 102_400, pattern, position, Head(tied=not slides))


WORDS = words(
    exaone4(2048, 30, 32, 64, 4096, 65_536, slides=False),
    # beside windows, what sees everything has no positions
    windows(word="sliding_window_pattern", still=True, optional=True),
    max_position_embeddings=2048,
    num_key_value_heads=32,
    rms_norm_eps=1e-5,
)

EXAONE4 = Recipe(
    name="exaone4",
    paper="LG AI Research 2025, EXAONE 4.0 (arXiv 2507.11407)",
    sizes={
        "1.2b": exaone4(2048, 30, 32, 64, 4096, 65_536, slides=False),
        "32b": exaone4(5120, 64, 40, 128, 27_392, 131_072, slides=True),
    },
    tokenizer="LGAI-EXAONE/EXAONE-4.0-1.2B",
    words=WORDS,
    family="Exaone4",
    weights=table(ATTENTION, GATED, QK_NORMS, OUTPUT_NORMS),
)

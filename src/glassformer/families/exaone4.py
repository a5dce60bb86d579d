"""EXAONE 4: what a sublayer adds is normed; the larger one slides a window in three of four blocks,
and the fourth knows no positions."""

from __future__ import annotations

from ..core.config import Attention, RMSNorm
from .decoder_pages import (
    ATTENTION,
    GATED,
    OUTPUT_NORMS,
    QK_NORMS,
    decoder,
    table,
    windows,
    words,
)
from .recipe import page

page(
    "exaone4",
    words=words(
        decoder(Attention(1, qk_norm=RMSNorm()), place="output"),
        # beside windows, what sees everything has no positions
        windows(word="sliding_window_pattern", still=True, optional=True),
        max_position_embeddings=2048,
        num_key_value_heads=32,
        rms_norm_eps=1e-5,
    ),
    weights=table(ATTENTION, GATED, QK_NORMS, OUTPUT_NORMS),
)

"""Command R7B (Cohere 2): a parallel block; windows with positions, and full views without."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import LayerNorm
from .decoder_pages import ATTENTION, GATED, decoder, read_rotary, table, turned, windows, words
from .recipe import page

page(
    "cohere2",
    words=words(
        decoder(norm=LayerNorm(bias=False), place="parallel"),
        turned(lambda raw: replace(read_rotary(raw), interleaved=True)),
        windows(word="sliding_window_pattern", still=True),
        without="head_dim",
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        layer_norm_eps=1e-5,
        attention_bias=False,
        logit_scale=(0.0625, "head.scale"),
    ),
    weights=table(ATTENTION, GATED, {"attn_norm": "input_layernorm"}),
)

"""Mistral: a Llama with few key-value heads and, in its first version, a sliding window."""

from __future__ import annotations

from .decoder_pages import LLAMA_TABLE, decoder, window, words
from .recipe import page

page(
    "mistral",
    words=words(
        decoder(),
        window(4096),
        even="mistral",
        max_position_embeddings=131_072,
        num_key_value_heads=8,
    ),
    weights=LLAMA_TABLE,
)

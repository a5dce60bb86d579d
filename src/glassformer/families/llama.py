"""Llama 2, 3, 3.1 and 3.2: RMSNorm, rotary positions, grouped queries, a SiLU gate, no biases."""

from __future__ import annotations

from .decoder_pages import LLAMA_TABLE, decoder, words
from .recipe import page

WORDS = words(
    decoder(),
    even="llama",
    max_position_embeddings=2048,
    attention_bias=False,
    mlp_bias=False,
)
read_config, write_config = WORDS.decode, WORDS.encode


LLAMA = page("llama", words=WORDS, weights=LLAMA_TABLE)

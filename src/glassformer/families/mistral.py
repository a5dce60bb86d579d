"""Mistral: a Llama with few key-value heads and, in its first version, a sliding window."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    GatedMLP,
    RMSNorm,
    Rotary,
)
from .decoder_pages import LLAMA_TABLE, decoder, window, words
from .keys import only
from .recipe import Recipe, sizes

WORDS = words(
    decoder(Block(Attention(1), GatedMLP(1), RMSNorm()), Rotary()),
    only("layer_types", None, "the blocks of a Mistral all see the same"),
    window(4096),
    even="mistral",
    max_position_embeddings=131_072,
    num_key_value_heads=8,
)

MISTRAL = Recipe(
    name="mistral",
    paper="Jiang et al. 2023, Mistral 7B (arXiv 2310.06825)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers max_position_embeddings vocab_size sliding_window \
        rope_theta head_dim
        7b-v0.1  4096 32 32768 32000  -    -         -
        7b-v0.2  4096 32 32768 32000  null 1000000.0 -
        7b-v0.3  4096 32 32768 32768  null 1000000.0 -
        nemo-12b 5120 40 -     131072 null 1000000.0 128
        """,
        num_attention_heads=32,
        intermediate_size=14_336,
        rms_norm_eps=1e-05,
    ),
    tokenizer="mistralai/Mistral-7B-v0.1",
    words=WORDS,
    family="Mistral",
    weights=LLAMA_TABLE,
)

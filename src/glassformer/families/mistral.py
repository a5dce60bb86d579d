"""Mistral: a Llama with few key-value heads and, in its first version, a sliding window."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Full,
    GatedMLP,
    MaskRule,
    RMSNorm,
    Rotary,
    Window,
)
from .decoder_pages import LLAMA_TABLE, decoder, window, words
from .keys import only
from .recipe import Recipe


def mistral(
    context: int = 32_768,
    vocab: int = 32_000,
    theta: float = 1e6,
    mask: MaskRule = Full(),
    dim: int = 4096,
    depth: int = 32,
    head_dim: int | None = None,
) -> Decoder:
    """The shape of Mistral: 32 heads, 8 of keys and values, 14,336 wide inside."""
    block = Block(Attention(32, 8, head_dim, mask=mask), GatedMLP(14_336), RMSNorm())
    return decoder(dim, depth, context, vocab, block, Rotary(theta))


WORDS = words(
    mistral(),
    only("layer_types", None, "the blocks of a Mistral all see the same"),
    window(4096),
    even="mistral",
    max_position_embeddings=131_072,
    num_key_value_heads=8,
)

MISTRAL = Recipe(
    name="mistral",
    paper="Jiang et al. 2023, Mistral 7B (arXiv 2310.06825)",
    sizes={
        "7b-v0.1": mistral(theta=10_000.0, mask=Window(4096)),
        "7b-v0.2": mistral(),
        "7b-v0.3": mistral(vocab=32_768),
        "nemo-12b": mistral(131_072, 131_072, dim=5120, depth=40, head_dim=128),
    },
    tokenizer="mistralai/Mistral-7B-v0.1",
    words=WORDS,
    family="Mistral",
    weights=LLAMA_TABLE,
)

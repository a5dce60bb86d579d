"""Command R7B (Cohere 2): a parallel block; windows with positions, and full views without."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Full,
    GatedMLP,
    Head,
    LayerNorm,
    NoPosition,
    Rotary,
    Window,
)
from .decoder_pages import ATTENTION, GATED, decoder, read_rotary, table, turned, windows, words
from .recipe import Recipe


def cohere2(dim: int, depth: int, heads: int, hidden: int, scale: float) -> Decoder:
    """The shape of Command R7B: windows of 4,096 in three of four blocks, 256,000 tokens."""
    norm = LayerNorm(bias=False)
    block = Block(Attention(heads, 8, mask=Window(4096)), GatedMLP(hidden), norm, place="parallel")
    full = replace(block, attention=replace(block.attention, mask=Full()), position=NoPosition())
    position, head = Rotary(50_000.0, interleaved=True), Head(scale=scale)
    return decoder(dim, depth, 132_096, 256_000, (block, block, block, full), position, head)


WORDS = words(
    cohere2(4096, 4, 32, 14_336, 0.25),
    turned(lambda raw: replace(read_rotary(raw), interleaved=True)),
    windows(word="sliding_window_pattern", still=True),
    without="head_dim",
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    layer_norm_eps=1e-5,
    attention_bias=False,
    logit_scale=(0.0625, "head.scale"),
)

COHERE2 = Recipe(
    name="cohere2",
    paper="Cohere 2024, Command R7B; Yang et al. 2025, Rope to Nope and Back Again (arXiv "
    "2501.18795)",
    sizes={"command-r7b": cohere2(4096, 32, 32, 14_336, 0.25)},
    tokenizer="CohereLabs/c4ai-command-r7b-12-2024",
    words=WORDS,
    family="Cohere2",
    weights=table(ATTENTION, GATED, {"attn_norm": "input_layernorm"}),
)

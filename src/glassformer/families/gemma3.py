"""Gemma 3 for text: a Gemma 2 with normed queries and keys, without caps; five of six blocks slide a
window and turn faster."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import Attention, Block, Decoder, GatedMLP, Head, Rotary, Window
from . import gemma
from .decoder_pages import (
    ATTENTION,
    GATED,
    QK_NORMS,
    decoder,
    local_scheme,
    read_rotary,
    read_schemes,
    table,
    turned,
    windows,
    words,
)
from .keys import Section, key, only
from .recipe import ConfigReader, Recipe, tile

LOCAL, GLOBAL = 10_000.0, 1_000_000.0  # theta of blocks with a window, and of the others


def gemma3(dim: int, depth: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Gemma 3: 4 heads of 256, windows of 512, 262,144 tokens, 32,768 positions."""
    attention = Attention(4, kv_heads, 256, qk_norm=gemma.NORM, scale=256**-0.5)
    block = Block(attention, GatedMLP(hidden, "gelu_tanh"), gemma.NORM, place="sandwich")
    slides = replace(block, attention=replace(attention, mask=Window(512)), position=Rotary(LOCAL))
    blocks = tile([slides if (i + 1) % 6 else block for i in range(depth)])
    return decoder(dim, depth, 32_768, 262_144, blocks, Rotary(GLOBAL), Head(), scale=dim**0.5)


def _positions(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others."""
    if raw.inside("rope_parameters") is not None:
        return read_schemes(raw, LOCAL, GLOBAL)
    local = raw.number("rope_local_base_freq", LOCAL, least=1.0)
    return Rotary(local), read_rotary(raw, GLOBAL)


WORDS = words(
    gemma3(640, 6, 1, 2048),
    key("hidden_activation", "gelu_pytorch_tanh"),
    *gemma.SHARED,
    gemma.QUERY_SCALE,
    key("final_logit_softcapping", None, "head.softcap"),
    only("attn_logit_softcapping", None, "no Gemma 3 caps its scores"),
    turned(lambda raw: _positions(raw)[1]),
    Section(encode=lambda model: {"rope_local_base_freq": local_scheme(model, LOCAL).theta}),
    windows(every=6, word="sliding_window_pattern", local=lambda raw: _positions(raw)[0]),
    even="gemma3",
    max_position_embeddings=131_072,
    num_key_value_heads=4,
    head_dim=256,
    tie_word_embeddings=True,
)

GEMMA3 = Recipe(
    name="gemma3",
    paper="Gemma Team 2025, Gemma 3 Technical Report (arXiv 2503.19786)",
    sizes={"270m": gemma3(640, 18, 1, 2048), "1b": gemma3(1152, 26, 1, 6912)},
    architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
    model_type="gemma3_text",
    tokenizer="google/gemma-3-270m",
    words=WORDS,
    weights=table(ATTENTION, GATED, QK_NORMS, gemma.SANDWICH),
)

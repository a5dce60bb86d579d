"""OLMo 2 and 3: what a sublayer adds is normed, and queries and keys of all heads at once.

OLMo 3 slides a window in three of four blocks. OLMoE is a Llama with OLMo 2's queries and keys, and
experts.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Model,
    MoE,
    RMSNorm,
    Rotary,
    Window,
    YarnScaling,
)
from .decoder_pages import (
    ATTENTION,
    EXPERTS,
    GATED,
    NORMS,
    OUTPUT_NORMS,
    QK_NORMS,
    decoder,
    first_block,
    local_scheme,
    read_rotary,
    read_schemes,
    stack,
    table,
    turned,
    windows,
    words,
    write_rope_table,
)
from .keys import Section, only
from .recipe import ConfigReader, Recipe, Settings

NORM = RMSNorm(1e-6)
THETA3 = 500_000.0  # of both kinds of block


def olmo2(dim: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None) -> Decoder:
    """The shape of OLMo 2: 100,352 tokens, 4,096 positions."""
    attention = Attention(heads, kv_heads, qk_norm=NORM, qk_norm_whole=True)
    block = Block(attention, GatedMLP(hidden), NORM, place="output")
    return decoder(dim, depth, 4096, 100_352, block, Rotary(500_000.0))


WORDS = words(
    olmo2(2048, 16, 16, 8192), max_position_embeddings=2048, rms_norm_eps=1e-5, attention_bias=False
)
LAYERS = table(ATTENTION, QK_NORMS, GATED, OUTPUT_NORMS)
OLMO2 = Recipe(
    name="olmo2",
    paper="OLMo Team 2024, 2 OLMo 2 Furious (arXiv 2501.00656)",
    sizes={
        "1b": olmo2(2048, 16, 16, 8192),
        "7b": olmo2(4096, 32, 32, 11_008),
        "13b": olmo2(5120, 40, 40, 13_824),
        "32b": olmo2(5120, 64, 40, 27_648, kv_heads=8),
    },
    tokenizer="allenai/OLMo-2-0425-1B",
    words=WORDS,
    family="Olmo2",
    weights=LAYERS,
)


def olmo3(dim: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None) -> Decoder:
    """The shape of OLMo 3: windows of 4,096 in three of four blocks, 100,278 tokens, 65,536
    positions."""
    plain = olmo2(dim, depth, heads, hidden, kv_heads)
    full = first_block(plain)
    slides = replace(
        full, attention=replace(full.attention, mask=Window(4096)), position=Rotary(THETA3)
    )
    yarn = YarnScaling(8.0, 8192, 32.0, 1.0, 1.2079441541679836)
    body = replace(
        stack(plain),
        pattern=(slides, slides, slides, full),
        position=Rotary(THETA3, scaling=yarn),
    )
    return replace(plain, context=65_536, embed=Embed(100_278), decoder=body)


def _positions3(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others; a scaling of version 4 of transformers
    is of the others alone."""
    if raw.inside("rope_parameters") is not None:
        return read_schemes(raw, THETA3, THETA3)
    raw.only("rope_theta", THETA3, "every OLMo 3 has that of 500,000")
    return Rotary(THETA3), read_rotary(raw, THETA3)


def _write_tables(model: Model) -> Settings:
    """A table for blocks with a window, and one for all others."""
    near = {"rope_type": "default", "rope_theta": local_scheme(model, THETA3).theta}
    far = write_rope_table(model)["rope_parameters"]
    return {"rope_parameters": {"full_attention": far, "sliding_attention": near}}


WORDS3 = words(
    olmo3(4096, 32, 32, 11_008),
    turned(lambda raw: _positions3(raw)[1]),
    windows(local=lambda raw: _positions3(raw)[0]),
    rope=Section(encode=_write_tables),
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    attention_bias=False,
)

OLMO3 = Recipe(
    name="olmo3",
    paper="OLMo Team 2025, Olmo 3 (arXiv 2512.13961)",
    sizes={
        "7b": olmo3(4096, 32, 32, 11_008),
        "32b": olmo3(5120, 64, 40, 27_648, kv_heads=8),
    },
    tokenizer="allenai/Olmo-3-1025-7B",
    words=WORDS3,
    family="Olmo3",
    weights=LAYERS,
)


def olmoe(dim: int, depth: int, heads: int, experts: MoE) -> Decoder:
    """The shape of OLMoE: 50,304 tokens, 4,096 positions."""
    norm = RMSNorm(1e-5)
    attention = Attention(heads, qk_norm=norm, qk_norm_whole=True)
    return decoder(dim, depth, 4096, 50_304, Block(attention, experts, norm), Rotary())


_SIZE = olmoe(2048, 16, 16, MoE(64, 8, GatedMLP(1024), normalize=False, balance_loss=0.01))
WORDSMOE = words(
    _SIZE,
    only("clip_qkv", None, "queries, keys and values here are not clipped"),
    without="head_dim",
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    attention_bias=False,
    num_experts=64,
    num_experts_per_tok=8,
    norm_topk_prob=False,
    router_aux_loss_coef=0.01,
)

OLMOE = Recipe(
    name="olmoe",
    paper="Muennighoff et al. 2024, OLMoE: Open Mixture-of-Experts Language Models (arXiv "
    "2409.02060)",
    sizes={"1b-7b": _SIZE},
    tokenizer="allenai/OLMoE-1B-7B-0924",
    words=WORDSMOE,
    family="Olmoe",
    weights=table(ATTENTION, QK_NORMS, NORMS, tables=EXPERTS),
)

"""GLM-4.5: a Llama of which half of each head turns, with a routed mixture after its first blocks."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import Attention, Block, Decoder, GatedMLP, RMSNorm, Rotary
from . import mixtures
from .decoder_pages import ATTENTION, QK_NORMS, decoder, rotary, words
from .phi import qk_norm
from .recipe import Recipe, tile
from .routed import RoutedMoE

NORM = RMSNorm(1e-5)
MIXTURE = RoutedMoE(128, 8, GatedMLP(1408), shared=GatedMLP(1408))


def glm4_moe(
    dim: int, depth: int, hidden: int, mixture: RoutedMoE, dense: int, qk_norm: RMSNorm | None
) -> Decoder:
    """The shape of GLM-4.5: 96 heads and 8 key-value heads of 128, 151,552 tokens, 131,072
    positions."""
    attention = Attention(96, 8, 128, bias=True, out_bias=False, qk_norm=qk_norm)
    block = Block(attention, GatedMLP(hidden), NORM)
    mixes = replace(block, feedforward=mixture)
    pattern = tile([block] * dense + [mixes] * (depth - dense))
    return decoder(dim, depth, 131_072, 151_552, pattern, Rotary(1e6, 0.5))


AIR = glm4_moe(4096, 46, 10_944, MIXTURE, 1, None)
WORDS = words(
    AIR,
    qk_norm("use_qk_norm", RMSNorm, "rms_norm_eps"),
    rotary(fraction=0.5),
    mixtures.routed("glm4_moe", MIXTURE, 1),
    mixtures.UNPREDICTED,
    max_position_embeddings=131_072,
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
    attention_bias=False,
)

GLM4_MOE = Recipe(
    name="glm4_moe",
    paper="GLM-4.5 Team 2025, GLM-4.5: Agentic, Reasoning, and Coding Foundation Models (arXiv "
    "2508.06471)",
    sizes={
        "4.5-air": AIR,
        "4.5": glm4_moe(
            5120,
            92,
            12_288,
            RoutedMoE(160, 8, GatedMLP(1536), shared=GatedMLP(1536), scale=2.5),
            3,
            NORM,
        ),
    },
    tokenizer="zai-org/GLM-4.5-Air",
    words=WORDS,
    family="Glm4Moe",
    weights=mixtures.table(ATTENTION, QK_NORMS),
)

"""GLM-4.5: a Llama of which half of each head turns, with a routed mixture after its first blocks."""

from __future__ import annotations

from ..core.config import Attention, Block, GatedMLP, RMSNorm, Rotary
from . import mixtures
from .decoder_pages import ATTENTION, QK_NORMS, decoder, rotary, words
from .phi import qk_norm
from .recipe import Recipe, sizes
from .routed import RoutedMoE

MIXTURE = RoutedMoE(128, 8, GatedMLP(1408), shared=GatedMLP(1408))


WORDS = words(
    decoder(Block(Attention(1, bias=True, out_bias=False), GatedMLP(1), RMSNorm()), Rotary()),
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
    sizes=sizes(
        """
        hidden_size num_hidden_layers intermediate_size use_qk_norm moe_intermediate_size \
        n_routed_experts routed_scaling_factor first_k_dense_replace
        4.5-air 4096 46 10944 -    -    -   -   -
        4.5     5120 92 12288 true 1536 160 2.5 3
        """,
        num_attention_heads=96,
        head_dim=128,
        vocab_size=151_552,
        attention_bias=True,
        rope_theta=1000000.0,
    ),
    tokenizer="zai-org/GLM-4.5-Air",
    words=WORDS,
    family="Glm4Moe",
    weights=mixtures.table(ATTENTION, QK_NORMS),
)

"""Mixtral: a Llama whose every feed-forward is a mixture of eight experts, two for each token."""

from __future__ import annotations

from ..core.config import Attention, Block, GatedMLP, MoE, RMSNorm, Rotary
from .decoder_pages import ATTENTION, NORMS, decoder, experts, rotary, table, window, words
from .keys import only
from .recipe import Recipe, sizes

STILL_ROUTER = only("router_jitter_noise", 0.0, "no router here shakes what it reads")
WORDS = words(
    decoder(Block(Attention(1), MoE(1, 1, GatedMLP(1)), RMSNorm()), Rotary()),
    STILL_ROUTER,
    window(),
    rotary(1e6),
    max_position_embeddings=131_072,
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
    num_local_experts=8,
    num_experts_per_tok=2,
    router_aux_loss_coef=0.001,
)
EXPERTS = {
    "ffn.router.weight": "block_sparse_moe.gate.weight",
    **experts("block_sparse_moe.experts.{e}.{}.weight", "w1", "w3", "w2"),
}
WEIGHTS = table(ATTENTION, NORMS, tables=EXPERTS)
MIXTRAL = Recipe(
    name="mixtral",
    paper="Jiang et al. 2024, Mixtral of Experts (arXiv 2401.04088)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size \
        max_position_embeddings router_aux_loss_coef
        8x7b  4096 32 32 14336 32768 0.02
        8x22b 6144 56 48 16384 65536 -
        """,
        vocab_size=32_000,
    ),
    tokenizer="mistralai/Mixtral-8x7B-v0.1",
    words=WORDS,
    family="Mixtral",
    weights=WEIGHTS,
)

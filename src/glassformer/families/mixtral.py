"""Mixtral: a Llama whose every feed-forward is a mixture of eight experts, two for each token."""

from __future__ import annotations

from ..core.config import Attention, Block, Decoder, GatedMLP, MoE, RMSNorm, Rotary
from .decoder_pages import ATTENTION, NORMS, decoder, experts, rotary, table, window, words
from .keys import only
from .recipe import Recipe


def mixtral(dim: int, depth: int, heads: int, hidden: int, context: int, balance: float) -> Decoder:
    """The shape of Mixtral: 8 key-value heads, 32,000 tokens."""
    block = Block(Attention(heads, 8), MoE(8, 2, GatedMLP(hidden), balance_loss=balance), RMSNorm())
    return decoder(dim, depth, context, 32_000, block, Rotary(1e6))


STILL_ROUTER = only("router_jitter_noise", 0.0, "no router here shakes what it reads")
WORDS = words(
    mixtral(4096, 32, 32, 14_336, 32_768, 0.001),
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
    sizes={
        "8x7b": mixtral(4096, 32, 32, 14_336, 32_768, balance=0.02),
        "8x22b": mixtral(6144, 56, 48, 16_384, 65_536, balance=0.001),
    },
    tokenizer="mistralai/Mixtral-8x7B-v0.1",
    words=WORDS,
    family="Mixtral",
    weights=WEIGHTS,
)

"""Mixtral: a Llama whose every feed-forward is a mixture of eight experts, two for each token."""

from __future__ import annotations

from ..core.config import GatedMLP, MoE
from .decoder_pages import ATTENTION, NORMS, decoder, rotary, table, window, words
from .recipe import page

EXPERTS = {
    "ffn.router.weight": "block_sparse_moe.gate.weight",
    "ffn.gate": "block_sparse_moe.experts.{e}.w1.weight",
    "ffn.up": "block_sparse_moe.experts.{e}.w3.weight",
    "ffn.down": "block_sparse_moe.experts.{e}.w2.weight",
}
WEIGHTS = table(ATTENTION, NORMS, tables=EXPERTS)
page(
    "mixtral",
    words=words(
        decoder(feedforward=MoE(1, 1, GatedMLP(1))),
        window(),
        rotary(1e6),
        max_position_embeddings=131_072,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        num_local_experts=8,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.001,
    ),
    weights=WEIGHTS,
)

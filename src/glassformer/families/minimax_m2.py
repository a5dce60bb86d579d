"""MiniMax-M2: queries and keys of all heads normed at once, half of each head turns, and a routed
mixture in every block."""

from __future__ import annotations

from ..core.config import Attention, GatedMLP, RMSNorm, Rotary
from .decoder_pages import ATTENTION, NORMS, QK_NORMS, decoder, read_rotary, table, turned, words
from .keys import MOST_HEADS
from .mixtral import EXPERTS
from .recipe import ConfigReader, page
from .routed import RoutedMoE

THETA = 5_000_000.0


def _positions(raw: ConfigReader) -> Rotary:
    """Rotary positions; published files say how many dimensions turn, ``rotary_dim``."""
    width = raw.integer("head_dim", 128, most=MOST_HEADS)
    turned = raw.integer("rotary_dim", width, most=width)
    return read_rotary(raw, THETA, turned / width)


page(
    "minimax_m2",
    words=words(
        decoder(
            Attention(1, out_bias=False, qk_norm=RMSNorm(), qk_norm_whole=True),
            RoutedMoE(1, 1, GatedMLP(1)),
        ),
        turned(_positions, "partial_rotary_factor"),
        max_position_embeddings=196_608,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
        router_aux_loss_coef=0.001,
    ),
    weights=table(
        ATTENTION,
        NORMS,
        QK_NORMS,
        tables={**EXPERTS, "ffn.correction": "block_sparse_moe.e_score_correction_bias"},
    ),
)

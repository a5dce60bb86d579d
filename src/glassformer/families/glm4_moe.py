"""GLM-4.5: a Llama of which half of each head turns, with a routed mixture after its first blocks."""

from __future__ import annotations

from ..core.config import Attention, GatedMLP, RMSNorm
from . import mixtures
from .decoder_pages import ATTENTION, QK_NORMS, decoder, rotary, words
from .phi import qk_norm
from .recipe import page
from .routed import RoutedMoE

page(
    "glm4_moe",
    words=words(
        decoder(Attention(1, bias=True, out_bias=False)),
        qk_norm("use_qk_norm", RMSNorm, "rms_norm_eps"),
        rotary(fraction=0.5),
        mixtures.routed("glm4_moe", RoutedMoE(128, 8, GatedMLP(1408), shared=GatedMLP(1408)), 1),
        mixtures.UNPREDICTED,
        max_position_embeddings=131_072,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        attention_bias=False,
    ),
    weights=mixtures.table(ATTENTION, QK_NORMS),
)

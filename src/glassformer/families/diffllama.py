"""DiffLlama: a Llama whose heads attend in pairs, by the difference of two patterns."""

from __future__ import annotations

from .decoder_pages import ATTENTION, GATED, NORMS, decoder, table, words
from .mixers import LAMBDAS, DifferentialAttention
from .recipe import page

page(
    "diffllama",
    words=words(
        decoder(DifferentialAttention(2)),
        max_position_embeddings=2048,
        attention_bias=False,
        rms_norm_eps=(1e-5, "norm.eps last_norm.eps attention.eps"),
        lambda_std_dev=(0.1, "attention.lambda_std"),
    ),
    weights=table(
        ATTENTION, GATED, NORMS, tables={f"attn.{name}": f"self_attn.{name}" for name in LAMBDAS}
    ),
)

"""GPT-OSS: attention with sinks, a window in every second block, and a mixture of clamped experts."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import GatedMLP, Rotary, YarnScaling
from .decoder_pages import (
    ATTENTION,
    NORMS,
    OURS,
    ROPE_TABLE,
    THEIRS,
    decoder,
    read_rotary,
    rope_table,
    table,
    turned,
    windows,
    words,
)
from .names import NameRule
from .recipe import ConfigReader, page
from .sinks import ClampedMoE, SinkAttention

YARN = Rotary(150_000.0, scaling=YarnScaling(32.0, 4096, truncate=False))


def _positions(raw: ConfigReader) -> Rotary:
    """Rotary positions; those of the published models where the file has no table."""
    theta = raw.number("rope_theta", 150_000.0, least=1.0)
    return read_rotary(raw, 150_000.0) if rope_table(raw) else replace(YARN, theta=theta)


page(
    "gpt_oss",
    words=words(
        decoder(
            SinkAttention(1, bias=True), ClampedMoE(1, 1, GatedMLP(2880, bias=True)), position=YARN
        ),
        turned(_positions),
        windows(default=128, every=2, required=False),
        rope=ROPE_TABLE,
        max_position_embeddings=131_072,
        num_key_value_heads=8,
        head_dim=64,
        rms_norm_eps=1e-5,
        attention_bias=True,
        num_local_experts=128,
        num_experts_per_tok=4,
        swiglu_alpha=(1.702, "feedforward.alpha"),
        swiglu_limit=(7.0, "feedforward.limit"),
        router_aux_loss_coef=0.001,
    ),
    weights=table(
        ATTENTION,
        NORMS,
        {"ffn.router": "mlp.router"},
        tables={
            "attn.sinks": "self_attn.sinks",
            "ffn.down_bias": "mlp.experts.down_proj_bias",
        },
        # gate and up take turns
        fused={"ffn.gate ffn.up": "mlp.experts.gate_up_proj"},
        suffixes=("", "_bias"),
        axes="e c (d 2) -> (2 e) d c",
        more=(NameRule(f"{THEIRS}.mlp.experts.down_proj", f"{OURS}.ffn.down", transpose=True),),
    ),
)

"""Granite 4: Granite's multipliers on blocks of Mamba-2 and of attention, with routed experts beside
the network that every token passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Block,
    Decoder,
    GatedMLP,
    Head,
    MoE,
    NoPosition,
    RMSNorm,
)
from . import granite, mamba2
from .decoder_pages import (
    ATTENTION,
    GATE_UP,
    NORMS,
    OURS,
    THEIRS,
    LayerChoice,
    counted,
    decoder,
    listed,
    read_rotary,
    table,
    variant,
    words,
)
from .keys import MOST_HEADS, Key
from .mixers import Mamba2
from .names import NameRule, under
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-5)


def granite_h(
    dim: int, attention: Attention, mixer: Any, think: GatedMLP | MoE, divisor: float
) -> Decoder:
    """The shape of Granite 4.0 H: attention in four of 40 blocks, 100,352 tokens, 131,072 positions."""
    full = Block(attention, think, NORM, residual_scale=0.22)
    pattern = [full if i == 5 else replace(full, attention=mixer) for i in range(10)]
    head = Head(scale=1 / divisor)
    return decoder(dim, 40, 131_072, 100_352, pattern, NoPosition(), head, scale=12.0)


def _positions(raw: ConfigReader) -> Any:
    kind = raw.value("position_embedding_type", "nope")
    raw.must(kind in ("nope", "rope"), "position_embedding_type", '"rope" or "nope"')
    return read_rotary(raw) if kind == "rope" else NoPosition()


def _head_dim(raw: ConfigReader) -> Any:
    """The width of a head, which follows from the others where the file says no number."""
    width = raw.integer("mamba_expand", 2, most=64) * raw.integer("hidden_size")
    if raw.value("mamba_d_head", "auto") != "auto":
        return raw.integer("mamba_d_head", most=MOST_HEADS)
    return width // raw.integer("mamba_n_heads", 128, most=MOST_HEADS)


_SIZES = {
    "4.0-h-micro": granite_h(2048, Attention(32, 8, scale=1 / 64), Mamba2(64), GatedMLP(8192), 8.0),
    "4.0-h-tiny": granite_h(
        1536,
        Attention(12, 4, scale=1 / 128),
        Mamba2(48),
        MoE(64, 6, GatedMLP(512), balance_loss=0.001, shared=GatedMLP(1024)),
        6.0,
    ),
    "4.0-h-small": granite_h(
        4096,
        Attention(32, 8, scale=1 / 128),
        Mamba2(128),
        MoE(72, 10, GatedMLP(768), balance_loss=0.001, shared=GatedMLP(1536)),
        16.0,
    ),
}


_PLAIN = Attention(32, 8)
MIXTURE = MoE(8, 2, GatedMLP(11_008), balance_loss=0.001, shared=GatedMLP(1024))
WORDS = words(
    granite_h(2048, _PLAIN, _PLAIN, GatedMLP(1024), 8.0),
    *granite.MULTIPLIERS,
    mamba2.SILU,
    mamba2.UNLIMITED,
    mamba2.HEAD_DIM,
    Key(
        "position_embedding_type",
        "position",
        _positions,
        lambda position: "rope" if position["type"] == "Rotary" else None,
    ),
    variant(
        "attention",
        Mamba2(128, state=256, eps=1e-6),
        listed("linear_attention", "full_attention", lambda raw, depth: [True] * depth),
        absent={"mamba_n_heads": 1},
        mamba_n_heads="state_heads",
        mamba_d_head=Key("mamba_d_head", "head_dim", _head_dim),
        mamba_d_state="state",
        mamba_n_groups="groups",
        mamba_d_conv="kernel",
        mamba_proj_bias="bias",
        mamba_conv_bias="conv_bias",
        rms_norm_eps="eps",
    ),
    mamba2.expansion("mamba_expand"),
    variant(
        "feedforward",
        MIXTURE,
        counted("num_local_experts", LayerChoice(lambda raw, depth: [True] * depth)),
        absent={"num_local_experts": 0},
        num_local_experts="experts",
        num_experts_per_tok="top_k",
        intermediate_size="expert.hidden",
        shared_intermediate_size="shared.hidden",
        router_aux_loss_coef="balance_loss",
    ),
    max_position_embeddings=2048,
    shared_intermediate_size=(1024, "feedforward.hidden"),
)

_FFN = f"{OURS}.ffn"
SHARED = [
    NameRule(f"{THEIRS}.shared_mlp.{name}.weight", layers)
    for at in (_FFN, f"{_FFN}.shared")
    for name, layers in (
        ("input_linear", (f"{at}.gate.weight", f"{at}.up.weight")),
        ("output_linear", (f"{at}.down.weight",)),
    )
]
GRANITEMOEHYBRID = Recipe(
    name="granitemoehybrid",
    paper="IBM 2025, Granite 4.0; Dao & Gu 2024, Transformers are SSMs (arXiv 2405.21060)",
    sizes=_SIZES,
    tokenizer="ibm-granite/granite-4.0-h-micro",
    words=WORDS,
    family="GraniteMoeHybrid",
    weights=table(
        ATTENTION,
        NORMS,
        {"ffn.router": "block_sparse_moe.router.layer"},
        under("mamba", mamba2.LAYERS),
        tables={
            **under("mamba", mamba2.TABLES),
            "ffn.down": "block_sparse_moe.output_linear.weight",
        },
        more=(
            *SHARED,
            NameRule(
                f"{THEIRS}.block_sparse_moe.input_linear.weight",
                GATE_UP,
                axes="e (2 d) c -> (2 e) d c",
            ),
        ),
    ),
)

"""Granite 4: Granite's multipliers on blocks of Mamba-2 and of attention, with routed experts beside
the network that every token passes."""

from __future__ import annotations

from typing import Any

from ..core.config import (
    GatedMLP,
    MoE,
    NoPosition,
)
from . import granite, mamba2
from .decoder_pages import (
    ATTENTION,
    NORMS,
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
from .names import under
from .recipe import ConfigReader, page


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


MIXTURE = MoE(8, 2, GatedMLP(11_008), balance_loss=0.001, shared=GatedMLP(1024))

# a block without a mixture has this network alone
SHARED = {
    "ffn.gate ffn.up": "shared_mlp.input_linear",
    "ffn.down": "shared_mlp.output_linear",
    "ffn.shared.gate ffn.shared.up": "shared_mlp.input_linear",
    "ffn.shared.down": "shared_mlp.output_linear",
}
page(
    "granitemoehybrid",
    words=words(
        decoder(position=NoPosition()),
        *granite.MULTIPLIERS,
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
    ),
    weights=table(
        ATTENTION,
        NORMS,
        SHARED,
        {"ffn.router": "block_sparse_moe.router.layer"},
        under("mamba", mamba2.LAYERS),
        tables={
            **under("mamba", mamba2.TABLES),
            "ffn.down": "block_sparse_moe.output_linear.weight",
        },
        fused={"ffn.gate ffn.up": "block_sparse_moe.input_linear.weight"},
        suffixes=("",),
        axes="e (2 d) c -> (2 e) d c",
    ),
)

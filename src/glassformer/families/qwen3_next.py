"""Qwen3-Next: a gated delta net in three of four blocks, attention with a gate in the fourth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core.config import Block, Decoder, GatedMLP, Model, MoE, RMSNorm, Rotary
from .decoders import (
    EXPERTS,
    GATED,
    NORMS,
    OURS,
    QK_NORMS,
    SHARED_EXPERT,
    SPARSE,
    THEIRS,
    blocks_of,
    decoder,
    listed,
    rotary,
    stack,
    table,
    variant,
    words,
)
from .gated_expert import GatedExpert
from .keys import keys, only
from .mixers import GatedAttention, GatedDelta
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe, Settings

NORM = RMSNorm(1e-6, offset=1.0)


def qwen3_next(
    dim: int, depth: int, attention: GatedAttention, delta: Any, think: GatedMLP | MoE
) -> Decoder:
    """The shape of Qwen3-Next: 151,936 tokens, 262,144 positions."""
    full = Block(attention, think, NORM)
    linear = replace(full, attention=delta)
    pattern = (linear, linear, linear, full)
    return decoder(dim, depth, 262_144, 151_936, pattern, Rotary(1e7, fraction=0.25))


_ATTENTION = GatedAttention(16, 2, 256, qk_norm=NORM)
_DELTA = GatedDelta(16, 32)
_MIXTURE = MoE(512, 10, GatedMLP(512), balance_loss=0.001, shared=GatedExpert(512))
# without linear blocks
_DENSE = qwen3_next(2048, 4, _ATTENTION, _ATTENTION, GatedMLP(5632))


def _linear(raw: ConfigReader, depth: int) -> list[bool]:
    interval = raw.integer("full_attention_interval", 4)
    return [(i + 1) % interval != 0 for i in range(depth)]


def _mixtures(raw: ConfigReader, depth: int) -> Sequence[bool] | None:
    chosen = SPARSE.decode(raw, depth)
    return chosen if chosen and any(chosen) and raw.value("num_experts", 512) != 0 else None


def _write_mixtures(model: Model) -> Settings:
    """The words of the mixtures; no experts where no block has any."""
    if not any(isinstance(block.feedforward, MoE) for block in blocks_of(model)):
        return {"num_experts": 0}
    raw = MIXTURES.encode(model)
    del raw["decoder_sparse_step"]
    return raw


DELTAS = variant(
    "attention",
    _DELTA,
    keys(
        linear_num_key_heads=(16, "key_heads"),
        linear_num_value_heads=(32, "value_heads"),
        linear_key_head_dim=(128, "key_dim"),
        linear_value_head_dim=(128, "value_dim"),
        linear_conv_kernel_dim=(4, "kernel"),
    ),
    listed("linear_attention", "full_attention", _linear),
    lambda raw, usual: replace(_DELTA, eps=raw.number("rms_norm_eps", 1e-6, most=1.0)),
)
MIXTURES = variant(
    "feedforward",
    _MIXTURE,
    keys(
        moe_intermediate_size=(512, "expert.hidden"),
        shared_expert_intermediate_size=(512, "shared.hidden"),
        num_experts=(512, "experts"),
        num_experts_per_tok=(10, "top_k"),
        norm_topk_prob=(True, "normalize"),
        router_aux_loss_coef=(0.001, "balance_loss"),
    ),
    replace(SPARSE, decode=_mixtures),
)
WORDS = words(
    _DENSE,
    only("hidden_act", "silu", "the convolution and the gate here are silu"),
    rotary(fraction=0.25),
    DELTAS,
    replace(MIXTURES, encode=_write_mixtures),
    max_position_embeddings=32_768,
    num_key_value_heads=2,
    head_dim=256,
    attention_bias=False,
)

_LAYERS = {
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "attn.in_proj": "linear_attn.in_proj_qkvz",
    "attn.rates": "linear_attn.in_proj_ba",
    "attn.conv": "linear_attn.conv1d",
    "attn.norm": "linear_attn.norm",
    "attn.out_proj": "linear_attn.out_proj",
    "ffn.router": "mlp.gate",
}
_TABLES = {
    **EXPERTS,
    "attn.A_log": "linear_attn.A_log",
    "attn.dt_bias": "linear_attn.dt_bias",
}
del _TABLES["ffn.router.weight"]


def weights(model: Model) -> Table:
    """The names of its weights: a file has a head's query and its gate together."""
    queries = [
        NameRule(
            f"{THEIRS}.self_attn.q_proj.{end}",
            tuple(f"{OURS}.attn.{name}.{end}" for name in ("q", "gate")),
            axes=turn,
            heads=stack(model).heads,
        )
        for end, turn in {
            "weight": "(h 2 d) c -> (2 h d) c",
            "bias": "(h 2 d) -> (2 h d)",
        }.items()
    ]
    return table(_LAYERS, QK_NORMS, GATED, SHARED_EXPERT, NORMS, tables=_TABLES, more=queries)


QWEN3_NEXT = Recipe(
    name="qwen3_next",
    paper="Qwen Team 2025, Qwen3-Next; Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464)",
    sizes={"80b-a3b": qwen3_next(2048, 48, _ATTENTION, _DELTA, _MIXTURE)},
    tokenizer="Qwen/Qwen3-Next-80B-A3B-Instruct",
    words=WORDS,
    family="Qwen3Next",
    weights=weights,
)

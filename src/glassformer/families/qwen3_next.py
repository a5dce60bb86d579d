"""Qwen3-Next and Qwen 3.5: a gated delta net in three of four blocks, attention with a gate in the
fourth."""

from __future__ import annotations

from functools import partial

from ..core.config import GatedMLP, Model, MoE, RMSNorm
from . import qwen
from .decoder_pages import (
    ATTENTION,
    EXPERTS,
    GATED,
    NORMS,
    OURS,
    QK_NORMS,
    SHARED_EXPERT,
    SPARSE,
    THEIRS,
    counted,
    decoder,
    first_layer,
    listed,
    rotary,
    stack,
    table,
    variant,
    words,
)
from .gated_expert import GatedExpert
from .keys import ConfigWords, Entry
from .mamba2 import LAYERS
from .mixers import GatedAttention, GatedDelta
from .names import Names, Table, rules, under
from .recipe import ConfigReader, page

NORM = RMSNorm(1e-6, offset=1.0)


_DELTA = GatedDelta(16, 32)
_MIXTURE = MoE(512, 10, GatedMLP(512), balance_loss=0.001, shared=GatedExpert(512))
# without linear blocks


def _linear(raw: ConfigReader, depth: int) -> list[bool]:
    interval = raw.integer("full_attention_interval", 4)
    return [(i + 1) % interval != 0 for i in range(depth)]


DELTAS = variant(
    "attention",
    _DELTA,
    listed("linear_attention", "full_attention", _linear),
    linear_num_key_heads="key_heads",
    linear_num_value_heads="value_heads",
    linear_key_head_dim="key_dim",
    linear_value_head_dim="value_dim",
    linear_conv_kernel_dim="kernel",
    rms_norm_eps="eps",
)
MIXTURES = variant(
    "feedforward",
    _MIXTURE,
    counted("num_experts", SPARSE),
    absent={"num_experts": 0},
    shared_expert_intermediate_size="shared.hidden",
    **qwen.MIXTURE,
)


def _words(kv_heads: int, *more: Entry) -> ConfigWords:
    return words(
        decoder(GatedAttention(1, qk_norm=NORM), norm=NORM),
        rotary(fraction=0.25),
        DELTAS,
        *more,
        max_position_embeddings=32_768,
        num_key_value_heads=kv_heads,
        head_dim=256,
        attention_bias=False,
    )


NEXT = {
    "attn.in_q attn.in_k attn.in_v attn.in_gate": "in_proj_qkvz",
    "attn.learn attn.fade": "in_proj_ba",
}
NAMES_3_5 = {
    "attn.in_q attn.in_k attn.in_v": "in_proj_qkv",
    "attn.in_gate": "in_proj_z",
    "attn.learn": "in_proj_b",
    "attn.fade": "in_proj_a",
}
_TABLES = {**EXPERTS, **under("linear_attn", {"A_log": "A_log", "dt_bias": "dt_bias"})}


def weights(model: Model, names: Names = NEXT) -> Table:
    """The names of its weights; a file deals rows of several layers out to heads."""
    key_heads = first_layer(model, _DELTA).key_heads if names is NEXT else 1
    layers = {**ATTENTION, **under("linear_attn", LAYERS)}
    del layers["attn.q"], layers["attn.in_proj"]
    return table(
        layers,
        QK_NORMS,
        GATED,
        SHARED_EXPERT,
        NORMS,
        tables=_TABLES,
        fused={"attn.q attn.gate": "self_attn.q_proj"},
        groups=stack(model).heads,
        more=rules(names, f"{THEIRS}.linear_attn.", f"{OURS}.", groups=key_heads),
    )


page("qwen3_next", words=_words(2, MIXTURES), weights=weights)


page("qwen3_5", words=_words(4), weights=partial(weights, names=NAMES_3_5))

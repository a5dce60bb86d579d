"""Qwen: a Llama with biases on queries, keys and values (2, 2.5), or with normalised queries and
keys (3).

Blocks may slide a window, and any block may be a mixture of experts, with a shared one in Qwen 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.config import Attention, Decoder, GatedMLP, Model, MoE, RMSNorm
from .decoder_pages import (
    ATTENTION,
    EXPERTS,
    GATED,
    LLAMA_TABLE,
    NORMS,
    QK_NORMS,
    SHARED_EXPERT,
    SPARSE,
    blocks_of,
    decoder,
    read_windows,
    table,
    variant,
    window_of,
    window_size,
    with_layers,
    words,
    write_windows,
)
from .gated_expert import GatedExpert
from .keys import Section, experts_key
from .recipe import ConfigReader, Settings, page

SHAPE2 = decoder(Attention(1, bias=True, out_bias=False))
SHAPE3 = decoder(Attention(1, qk_norm=RMSNorm()))


# ------------------------------------------------------------------------------------- config.json


def _slides(early: Callable[[ConfigReader, int], Sequence[bool]]) -> Section:
    """Windows, where ``use_sliding_window`` says so: of the blocks in ``layer_types``, or else of
    those that ``early`` says."""

    def decode(raw: ConfigReader, model: Decoder) -> Decoder:
        size = window_of(raw, 4096) if raw.flag("use_sliding_window", False) else None
        usual = early(raw, len(blocks_of(model)))
        masks = read_windows(raw, size, [size is not None and slides for slides in usual])
        return with_layers(model, "attention.mask", masks)

    def encode(model: Model) -> Settings:
        kinds, size = write_windows(model), window_size(model)
        return {
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "layer_types": kinds,
            # the blocks before the first window
            "max_window_layers": [*kinds, "sliding_attention"].index("sliding_attention"),
        }

    return Section(decode, encode)


def _late(raw: ConfigReader, depth: int) -> list[bool]:
    first = raw.number("max_window_layers", 28.0)
    return [i >= first for i in range(depth)]


def _every_second(raw: ConfigReader, depth: int) -> list[bool]:
    """Every second of the first ``max_window_layers``, as in transformers."""
    return [i % 2 == 0 and not late for i, late in enumerate(_late(raw, depth))]


MIXTURE: Settings = {
    "moe_intermediate_size": "expert.hidden",
    "num_experts": "experts",
    "num_experts_per_tok": "top_k",
    "norm_topk_prob": "normalize",
    "router_aux_loss_coef": "balance_loss",
}


def _mixture(layout: str, template: MoE, **places: Any) -> Section:
    """Mixtures of experts, whose networks are a dense block's."""

    def make(raw: ConfigReader, mlp: GatedMLP) -> MoE:
        shared = template.shared and GatedExpert(1, mlp.act)
        return replace(template, expert=mlp, shared=shared)

    missing = f"The {layout} layout holds only mixtures of experts."
    return variant("feedforward", template, SPARSE, make, missing, **MIXTURE | places)


def _alike(slides: Section) -> Section:
    """All blocks slide a window, or none."""
    return replace(
        slides,
        encode=lambda model: {
            word: value for word, value in slides.encode(model).items() if word != "layer_types"
        },
    )


# ---------------------------------------------------------------------------------------- the pages

page(
    "qwen2",
    words=words(
        SHAPE2,
        _slides(_late),
        max_position_embeddings=32_768,
        num_key_value_heads=32,
    ),
    weights=LLAMA_TABLE,
)

page(
    "qwen3",
    words=words(
        SHAPE3,
        _slides(_late),
        max_position_embeddings=32_768,
        num_key_value_heads=32,
        head_dim=128,
        attention_bias=False,
    ),
    weights=table(ATTENTION, GATED, NORMS, QK_NORMS),
)

page(
    "qwen3moe",
    words=words(
        SHAPE3,
        _alike(_slides(lambda raw, depth: [True] * depth)),
        _mixture(
            "qwen3moe",
            MoE(128, 8, GatedMLP(768), normalize=False, balance_loss=0.001),
            num_experts=experts_key("num_experts", 128),
        ),
        max_position_embeddings=32_768,
        num_key_value_heads=4,
        attention_bias=False,
    ),
    weights=table(ATTENTION, GATED, NORMS, QK_NORMS, tables=EXPERTS),
)

page(
    "qwen2moe",
    words=words(
        SHAPE2,
        _slides(_every_second),
        _mixture(
            "qwen2moe",
            MoE(
                60, 4, GatedMLP(1408), normalize=False, balance_loss=0.001, shared=GatedExpert(5632)
            ),
            shared_expert_intermediate_size="shared.hidden",
        ),
        without="head_dim",
        max_position_embeddings=32_768,
        num_key_value_heads=16,
        qkv_bias=(True, "attention.bias"),
    ),
    weights=table(ATTENTION, GATED, NORMS, SHARED_EXPERT, tables=EXPERTS),
)

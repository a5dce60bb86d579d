"""Qwen: a Llama with biases on queries, keys and values (2, 2.5), or with normalised queries and
keys (3).

Blocks may slide a window, and any block may be a mixture of experts, with a shared one in Qwen 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.config import Attention, Block, Decoder, GatedMLP, Model, MoE, RMSNorm, Rotary
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
    with_masks,
    words,
    write_windows,
)
from .gated_expert import GatedExpert
from .keys import MOST_HEADS, Key, Section, only
from .recipe import ConfigReader, Recipe, Settings, sizes

SHAPE2, SHAPE3 = (
    decoder(Block(attention, GatedMLP(1), RMSNorm()), Rotary())
    for attention in (Attention(1, bias=True, out_bias=False), Attention(1, qk_norm=RMSNorm()))
)


# ------------------------------------------------------------------------------------- config.json


def _slides(early: Callable[[ConfigReader, int], Sequence[bool]]) -> Section:
    """Windows, where ``use_sliding_window`` says so: of the blocks in ``layer_types``, or else of
    those that ``early`` says."""

    def decode(raw: ConfigReader, model: Decoder) -> Decoder:
        size = window_of(raw, 4096) if raw.flag("use_sliding_window", False) else None
        usual = early(raw, len(blocks_of(model)))
        masks = read_windows(raw, size, [size is not None and slides for slides in usual])
        return with_masks(model, masks)

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


WORDS2 = words(
    SHAPE2,
    only("use_mrope", False, "positions here have one dimension"),
    _slides(_late),
    max_position_embeddings=32_768,
    num_key_value_heads=32,
)
WORDS3 = words(
    SHAPE3,
    _slides(_late),
    max_position_embeddings=32_768,
    num_key_value_heads=32,
    head_dim=128,
    attention_bias=False,
)


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


def _experts(raw: ConfigReader) -> Any:
    count = raw.integer("num_local_experts", 128, most=MOST_HEADS)
    return raw.integer("num_experts", count, most=MOST_HEADS)


def _alike(slides: Section) -> Section:
    """All blocks slide a window, or none."""
    return replace(
        slides,
        encode=lambda model: {
            word: value for word, value in slides.encode(model).items() if word != "layer_types"
        },
    )


WORDS3MOE = words(
    SHAPE3,
    _alike(_slides(lambda raw, depth: [True] * depth)),
    _mixture(
        "qwen3moe",
        MoE(128, 8, GatedMLP(768), normalize=False, balance_loss=0.001),
        num_experts=Key("num_experts", "experts", _experts),
    ),
    only("layer_types", None, "the mixtures' blocks all see the same"),
    max_position_embeddings=32_768,
    num_key_value_heads=4,
    attention_bias=False,
)


WORDS2MOE = words(
    SHAPE2,
    _slides(_every_second),
    _mixture(
        "qwen2moe",
        MoE(60, 4, GatedMLP(1408), normalize=False, balance_loss=0.001, shared=GatedExpert(5632)),
        shared_expert_intermediate_size="shared.hidden",
    ),
    without="head_dim",
    max_position_embeddings=32_768,
    num_key_value_heads=16,
    qkv_bias=(True, "attention.bias"),
)

# ---------------------------------------------------------------------------------------- the pages

QWEN2 = Recipe(
    name="qwen2",
    paper="Yang et al. 2024, Qwen2 Technical Report (arXiv 2407.10671); Qwen2.5 Technical Report "
    "(arXiv 2412.15115)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size \
        max_position_embeddings vocab_size tie_word_embeddings rms_norm_eps
        0.5b     896  24 14 2 4864  131072 151936 true -
        1.5b     1536 28 12 2 8960  131072 151936 true -
        7b       3584 28 28 4 18944 131072 152064 -    -
        72b      8192 80 64 8 29568 131072 152064 -    1e-05
        2.5-0.5b 896  24 14 2 4864  -      151936 true -
        2.5-1.5b 1536 28 12 2 8960  131072 151936 true -
        2.5-3b   2048 36 16 2 11008 -      151936 true -
        2.5-7b   3584 28 28 4 18944 131072 152064 -    -
        2.5-14b  5120 48 40 8 13824 131072 152064 -    1e-05
        2.5-32b  5120 64 40 8 27648 131072 152064 -    1e-05
        2.5-72b  8192 80 64 8 29568 131072 152064 -    1e-05
        """,
        rope_theta=1000000.0,
    ),
    tokenizer="Qwen/Qwen2.5-0.5B",
    words=WORDS2,
    family="Qwen2",
    weights=LLAMA_TABLE,
)

QWEN3 = Recipe(
    name="qwen3",
    paper="Yang et al. 2025, Qwen3 Technical Report (arXiv 2505.09388)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size tie_word_embeddings
        0.6b 1024 28 16 3072  true
        1.7b 2048 28 16 6144  true
        4b   2560 36 32 9728  true
        8b   4096 36 32 12288 -
        14b  5120 40 40 17408 -
        32b  5120 64 64 25600 -
        """,
        num_key_value_heads=8,
        max_position_embeddings=40_960,
        vocab_size=151_936,
        rope_theta=1000000.0,
    ),
    tokenizer="Qwen/Qwen3-0.6B",
    words=WORDS3,
    family="Qwen3",
    weights=table(ATTENTION, GATED, NORMS, QK_NORMS),
)

QWEN3MOE = Recipe(
    name="qwen3moe",
    paper="Yang et al. 2025, Qwen3 Technical Report (arXiv 2505.09388)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size \
        moe_intermediate_size
        30b-a3b   2048 48 32 768  -
        235b-a22b 4096 94 64 1536 1536
        """,
        head_dim=128,
        max_position_embeddings=40_960,
        vocab_size=151_936,
        rope_theta=1000000.0,
        norm_topk_prob=True,
    ),
    model_type="qwen3_moe",
    tokenizer="Qwen/Qwen3-30B-A3B",
    words=WORDS3MOE,
    family="Qwen3Moe",
    weights=table(ATTENTION, GATED, NORMS, QK_NORMS, tables=EXPERTS),
)

QWEN2MOE = Recipe(
    name="qwen2moe",
    paper="Qwen Team 2024, Qwen1.5-MoE; Yang et al. 2024, Qwen2 Technical Report (arXiv 2407.10671)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size \
        max_position_embeddings num_key_value_heads moe_intermediate_size num_experts \
        num_experts_per_tok shared_expert_intermediate_size
        1.5-a2.7b 2048 24 16 1408 8192 - -    -  - -
        57b-a14b  3584 28 28 2560 -    4 2560 64 8 20480
        """,
        vocab_size=151_936,
        rope_theta=1000000.0,
    ),
    model_type="qwen2_moe",
    tokenizer="Qwen/Qwen1.5-MoE-A2.7B",
    words=WORDS2MOE,
    family="Qwen2Moe",
    weights=table(ATTENTION, GATED, NORMS, SHARED_EXPERT, tables=EXPERTS),
)

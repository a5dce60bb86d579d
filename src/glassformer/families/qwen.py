"""Qwen: a Llama with biases on queries, keys and values (2, 2.5), or with normalised queries and
keys (3).

Blocks may slide a window, and any block may be a mixture of experts, with a shared one in Qwen 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.config import Attention, Block, Decoder, GatedMLP, Head, Model, MoE, RMSNorm, Rotary
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
from .recipe import ConfigReader, Recipe, Settings

NORM = RMSNorm(1e-6)


def qwen2(
    dim: int,
    depth: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    context: int = 131_072,
    eps: float = 1e-6,
) -> Decoder:
    """The shape of Qwen 2 and 2.5: up to 3b the head is tied, above the table is padded further."""
    small = dim <= 2048
    attention = Attention(heads, kv_heads, bias=True, out_bias=False)
    block = Block(attention, GatedMLP(hidden), RMSNorm(eps))
    vocab = 151_936 if small else 152_064
    return decoder(dim, depth, context, vocab, block, Rotary(1e6), Head(tied=small))


def qwen3(dim: int, depth: int, heads: int, think: int | MoE, kv_heads: int = 8) -> Decoder:
    """The shape of Qwen 3: heads of 128, 40,960 positions; up to 4b the head is tied."""
    feedforward = think if isinstance(think, MoE) else GatedMLP(think)
    block = Block(Attention(heads, kv_heads, 128, qk_norm=NORM), feedforward, NORM)
    tied = isinstance(feedforward, GatedMLP) and dim <= 2560
    return decoder(dim, depth, 40_960, 151_936, block, Rotary(1e6), Head(tied=tied))


def qwen2moe(
    dim: int, depth: int, heads: int, kv_heads: int, mixture: MoE, context: int
) -> Decoder:
    """The shape of Qwen 1.5 and 2 with mixtures: 151,936 tokens, a head of its own."""
    block = Block(Attention(heads, kv_heads, bias=True, out_bias=False), mixture, NORM)
    return decoder(dim, depth, context, 151_936, block, Rotary(1e6))


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
    qwen2(896, 24, 14, 2, 4864),
    only("use_mrope", False, "positions here have one dimension"),
    _slides(_late),
    max_position_embeddings=32_768,
    num_key_value_heads=32,
)
WORDS3 = words(
    qwen3(1024, 28, 16, 3072),
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


_QWEN3MOE = MoE(128, 8, GatedMLP(768), balance_loss=0.001)
WORDS3MOE = words(
    qwen3(1024, 28, 16, 3072),
    _alike(_slides(lambda raw, depth: [True] * depth)),
    _mixture(
        "qwen3moe",
        replace(_QWEN3MOE, normalize=False),
        num_experts=Key("num_experts", "experts", _experts),
    ),
    only("layer_types", None, "the mixtures' blocks all see the same"),
    max_position_embeddings=32_768,
    num_key_value_heads=4,
    attention_bias=False,
)


def _sizes(experts: int, top_k: int, hidden: int, shared: int) -> MoE:
    return MoE(
        experts,
        top_k,
        GatedMLP(hidden),
        normalize=False,
        balance_loss=0.001,
        shared=GatedExpert(shared),
    )


WORDS2MOE = words(
    qwen2(896, 24, 14, 2, 4864),
    _slides(_every_second),
    _mixture(
        "qwen2moe",
        _sizes(60, 4, 1408, 5632),
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
    sizes={
        "0.5b": qwen2(896, 24, 14, 2, 4864),
        "1.5b": qwen2(1536, 28, 12, 2, 8960),
        "7b": qwen2(3584, 28, 28, 4, 18_944),
        "72b": qwen2(8192, 80, 64, 8, 29_568, eps=1e-5),
        "2.5-0.5b": qwen2(896, 24, 14, 2, 4864, context=32_768),
        "2.5-1.5b": qwen2(1536, 28, 12, 2, 8960),
        "2.5-3b": qwen2(2048, 36, 16, 2, 11_008, context=32_768),
        "2.5-7b": qwen2(3584, 28, 28, 4, 18_944),
        "2.5-14b": qwen2(5120, 48, 40, 8, 13_824, eps=1e-5),
        "2.5-32b": qwen2(5120, 64, 40, 8, 27_648, eps=1e-5),
        "2.5-72b": qwen2(8192, 80, 64, 8, 29_568, eps=1e-5),
    },
    tokenizer="Qwen/Qwen2.5-0.5B",
    words=WORDS2,
    family="Qwen2",
    weights=LLAMA_TABLE,
)

QWEN3 = Recipe(
    name="qwen3",
    paper="Yang et al. 2025, Qwen3 Technical Report (arXiv 2505.09388)",
    sizes={
        "0.6b": qwen3(1024, 28, 16, 3072),
        "1.7b": qwen3(2048, 28, 16, 6144),
        "4b": qwen3(2560, 36, 32, 9728),
        "8b": qwen3(4096, 36, 32, 12_288),
        "14b": qwen3(5120, 40, 40, 17_408),
        "32b": qwen3(5120, 64, 64, 25_600),
    },
    tokenizer="Qwen/Qwen3-0.6B",
    words=WORDS3,
    family="Qwen3",
    weights=table(ATTENTION, GATED, NORMS, QK_NORMS),
)

QWEN3MOE = Recipe(
    name="qwen3moe",
    paper="Yang et al. 2025, Qwen3 Technical Report (arXiv 2505.09388)",
    sizes={
        "30b-a3b": qwen3(2048, 48, 32, _QWEN3MOE, kv_heads=4),
        "235b-a22b": qwen3(4096, 94, 64, replace(_QWEN3MOE, expert=GatedMLP(1536)), kv_heads=4),
    },
    model_type="qwen3_moe",
    tokenizer="Qwen/Qwen3-30B-A3B",
    words=WORDS3MOE,
    family="Qwen3Moe",
    weights=table(ATTENTION, GATED, NORMS, QK_NORMS, tables=EXPERTS),
)

QWEN2MOE = Recipe(
    name="qwen2moe",
    paper="Qwen Team 2024, Qwen1.5-MoE; Yang et al. 2024, Qwen2 Technical Report (arXiv 2407.10671)",
    sizes={
        "1.5-a2.7b": qwen2moe(2048, 24, 16, 16, _sizes(60, 4, 1408, 5632), context=8192),
        "57b-a14b": qwen2moe(3584, 28, 28, 4, _sizes(64, 8, 2560, 20_480), context=32_768),
    },
    model_type="qwen2_moe",
    tokenizer="Qwen/Qwen1.5-MoE-A2.7B",
    words=WORDS2MOE,
    family="Qwen2Moe",
    weights=table(ATTENTION, GATED, NORMS, SHARED_EXPERT, tables=EXPERTS),
)

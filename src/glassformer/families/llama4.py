"""Llama 4: rotary blocks that see chunks, blocks without positions that see everything, and experts
whose input is scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Chunk,
    Decoder,
    Full,
    GatedMLP,
    Model,
    NoPosition,
    RMSNorm,
    Rotary,
)
from .decoder_pages import (
    ATTENTION,
    NORMS,
    OURS,
    PROJECTIONS,
    THEIRS,
    LayerChoice,
    blocks_of,
    decoder,
    first_block,
    first_layer,
    numbers,
    read_kinds,
    read_numbers,
    read_rotary,
    read_turning,
    table,
    turned,
    variant,
    window_of,
    with_blocks,
    words,
)
from .keys import Section, layer_keys, read_keys, write_keys
from .mixers import TunedAttention
from .names import NameRule, under
from .recipe import ConfigReader, Settings, page
from .routed import ScaledInputMoE

KINDS = ("chunked_attention", "full_attention")
QK_NORM = RMSNorm(1e-5, gain=False)
MIXTURE = ScaledInputMoE(
    16,
    1,
    GatedMLP(8192),
    shared=GatedMLP(8192),
    correction=False,
    normalize=False,
    balance_loss=0.001,
)
TUNED = TunedAttention(1)
TUNING = layer_keys(TUNED, floor_scale="length", attn_scale="strength")


def _rotary(raw: ConfigReader) -> Rotary:
    # a norm after the turn takes a size of what turns out again
    kinds = ("default", "linear", "llama3")
    return replace(read_rotary(raw, 500_000.0, kinds=kinds), interleaved=True)


def _read_attention(raw: ConfigReader, model: Decoder) -> Decoder:
    """Blocks that turn, with a norm, and blocks without positions, whose queries grow."""
    blocks = blocks_of(model)
    turns = read_turning(raw, len(blocks))
    kinds = read_kinds(raw, KINDS, [KINDS[not turn] for turn in turns])
    turning: Any = first_block(model).attention
    still = replace(turning, qk_norm=None)
    turning = turning if raw.flag("use_qk_norm", True) else still
    if raw.value("attn_temperature_tuning", True):
        still = read_keys(raw, TunedAttention(**vars(still)), TUNING)
    size = window_of(raw, 8192, "attention_chunk_size")
    masks = [Chunk(size) if kind == KINDS[0] else Full() for kind in kinds]
    return with_blocks(
        model,
        [
            replace(
                block,
                attention=replace(turning if turns[i] else still, mask=masks[i]),
                position=None if turns[i] else NoPosition(),
            )
            for i, block in enumerate(blocks)
        ],
    )


def _write_attention(model: Model) -> Settings:
    blocks: list[Any] = blocks_of(model)
    masks = [getattr(block.attention, "mask", None) for block in blocks]
    sizes = [mask.size for mask in masks if isinstance(mask, Chunk)]
    return {
        **write_keys(first_layer(model, TUNED), TUNING),
        "attn_temperature_tuning": any(isinstance(b.attention, TunedAttention) for b in blocks),
        "use_qk_norm": any(getattr(block.attention, "qk_norm", None) for block in blocks),
        "attention_chunk_size": [*sizes, 8192][0],
        "layer_types": [KINDS[not isinstance(mask, Chunk)] for mask in masks],
        "no_rope_layers": [int(block.position is None) for block in blocks],
    }


def _mixtures(raw: ConfigReader, depth: int) -> list[bool]:
    step = raw.integer("interleave_moe_layer_step", 1)
    listed = read_numbers(raw, "moe_layers", range(step - 1, depth, step))
    return [i in listed for i in range(depth)]


page(
    "llama4",
    words=words(
        decoder(Attention(1, qk_norm=QK_NORM)),
        turned(_rotary),
        Section(_read_attention, _write_attention),
        variant(
            "feedforward",
            MIXTURE,
            LayerChoice(_mixtures, lambda chosen: {"moe_layers": numbers(chosen)}),
            lambda raw, mlp: replace(MIXTURE, expert=mlp, shared=mlp),
            num_local_experts="experts",
            num_experts_per_tok="top_k",
            intermediate_size="expert.hidden shared.hidden",
            router_aux_loss_coef="balance_loss",
        ),
        max_position_embeddings=131_072,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        attention_bias=False,
        intermediate_size_mlp=(16_384, "feedforward.hidden"),
    ),
    weights=table(
        ATTENTION,
        NORMS,
        {"ffn.router": "feed_forward.router"},
        under("feed_forward", PROJECTIONS, "ffn."),
        under("feed_forward.shared_expert", PROJECTIONS, "ffn.shared."),
        fused={"ffn.gate ffn.up": "feed_forward.experts.gate_up_proj"},
        suffixes=("",),
        axes="e c (2 d) -> (2 e) d c",
        more=(
            NameRule(
                f"{THEIRS}.feed_forward.experts.down_proj", f"{OURS}.ffn.down", transpose=True
            ),
        ),
    ),
)

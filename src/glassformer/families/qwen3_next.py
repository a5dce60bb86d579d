"""Qwen3-Next: a gated delta net in three of four blocks, attention with a gate in the fourth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    Model,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import ATTN
from .keys import MOST_HEADS, Key, read_keys
from .mixers import GatedAttention, GatedDelta
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-6, offset=1.0)
KINDS = ("linear_attention", "full_attention")


def qwen3_next(
    dim: int, depth: int, attention: GatedAttention, delta: GatedDelta, hidden: int
) -> Decoder:
    """The shape of a Qwen3-Next whose feed-forwards are dense: 151,936 tokens, 262,144
    positions."""
    full = Block(attention, GatedMLP(hidden), NORM)
    linear = replace(full, attention=delta)
    stack = Stack(
        depth, (linear, linear, linear, full), Rotary(1e7, fraction=0.25), last_norm=NORM
    )
    return Decoder(dim, 262_144, Embed(151_936), stack, Head(tied=False), decoders.INIT)


_SMALL = qwen3_next(
    1024, 4, GatedAttention(8, 2, 256, qk_norm=NORM), GatedDelta(16, 16), 3584
)
KEYS = decoders.keys(
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    context=32_768,
    kv_heads=2,
    head_dim=256,
    eps=decoders.eps("rms_norm_eps", 1e-6, f"{ATTN}.qk_norm.eps"),
    rotary=decoders.part_rotary(0.25),
)


def read_config(raw: ConfigReader) -> Model:
    """A Qwen3-Next config.json as our config."""
    model = read_keys(raw, decoders.with_attention_first(_SMALL, "qwen3_next"), KEYS)
    block, depth = decoders.first_block(model), model.decoder.depth
    raw.only("hidden_act", "silu", "the convolution and the gate here are silu")
    delta = GatedDelta(
        raw.integer("linear_num_key_heads", 16, most=MOST_HEADS),
        raw.integer("linear_num_value_heads", 32, most=MOST_HEADS),
        raw.integer("linear_key_head_dim", 128, most=MOST_HEADS),
        raw.integer("linear_value_head_dim", 128, most=MOST_HEADS),
        raw.integer("linear_conv_kernel_dim", 4, most=64),
        raw.number("rms_norm_eps", 1e-6, most=1.0),
    )
    interval = raw.integer("full_attention_interval", 4)
    kinds = raw.value("layer_types", [KINDS[(i + 1) % interval == 0] for i in range(depth)])
    fits = isinstance(kinds, list) and len(kinds) == depth and all(kind in KINDS for kind in kinds)
    raw.must(fits, "layer_types", f"a list of {depth} times {' or '.join(KINDS)}")
    dense, step = raw.value("mlp_only_layers", []), raw.integer("decoder_sparse_step", 1)
    raw.must(isinstance(dense, list), "mlp_only_layers", "a list of blocks' numbers")
    experts = raw.value("num_experts", 512)
    mixes = [bool(experts) and i not in dense and (i + 1) % step == 0 for i in range(depth)]
    raw.must(not any(mixes), "num_experts", "0: mixtures with a gated shared expert are not built here")
    linear = replace(block, attention=delta)
    return decoders.with_blocks(model, [linear if kind == KINDS[0] else block for kind in kinds])


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Qwen3-Next config.json, as far as that can say it."""
    stack = decoders.stack(model)
    mixers = [stack.block(i).attention for i in range(stack.depth)]
    delta = next((mixer for mixer in mixers if isinstance(mixer, GatedDelta)), GatedDelta(16, 32))
    return {
        **decoders.write(decoders.with_attention_first(model, "qwen3_next"), KEYS),
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.kernel,
        "layer_types": [KINDS[isinstance(mixer, GatedAttention)] for mixer in mixers],
        "num_experts": 0,
    }


_LAYERS = {
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.in_proj": "linear_attn.in_proj_qkvz",
    "attn.rates": "linear_attn.in_proj_ba",
    "attn.conv": "linear_attn.conv1d",
    "attn.norm": "linear_attn.norm",
    "attn.out_proj": "linear_attn.out_proj",
    **decoders.GATED,
    **decoders.NORMS,
}


def table(model: Model) -> Table:
    """The names of its weights: a file has a head's query and its gate together."""
    heads = decoders.stack(model).heads
    halves = tuple(f"{decoders.OURS}.attn.{name}.{{end}}" for name in ("q", "gate"))
    axes = {"weight": "(h 2 d) c -> (2 h d) c", "bias": "(h 2 d) -> (2 h d)"}
    queries = [
        NameRule(
            f"{decoders.THEIRS}.self_attn.q_proj.{end}",
            tuple(half.replace("{end}", end) for half in halves),
            axes=turn,
            heads=heads,
        )
        for end, turn in axes.items()
    ]
    rates = [
        NameRule(f"{decoders.THEIRS}.linear_attn.{name}", f"{decoders.OURS}.attn.{name}")
        for name in ("A_log", "dt_bias")
    ]
    return decoders.table(_LAYERS, *queries, *rates)


QWEN3_NEXT = Recipe(
    name="qwen3_next",
    paper="Qwen Team 2025, Qwen3-Next; Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464)",
    sizes={"small": _SMALL},
    architectures=("Qwen3NextForCausalLM", "Qwen3NextModel"),
    model_type="qwen3_next",
    tokenizer="Qwen/Qwen3-Next-80B-A3B-Instruct",
    read_config=read_config,
    write_config=write_config,
    weights=table,
)

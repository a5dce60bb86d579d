"""Qwen3-Next and Qwen 3.5: a gated delta net in three of four blocks, attention with a gate in the
fourth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config import (
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    Model,
    MoE,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders, mixtures
from .decoders import ATTN, OURS, THEIRS
from .gated_expert import GatedExpert
from .keys import Key, read_keys, read_part, write_part
from .mixers import GatedAttention, GatedDelta
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-6, offset=1.0)
KINDS = ("linear_attention", "full_attention")


def qwen3_next(
    dim: int,
    depth: int,
    attention: GatedAttention,
    delta: GatedDelta,
    think: GatedMLP | MoE,
    vocab: int = 151_936,
    tied: bool = False,
) -> Decoder:
    """The shape of Qwen3-Next and Qwen 3.5: 262,144 positions, 248,320 tokens in 3.5."""
    full = Block(attention, think, NORM)
    mixer: Any = delta
    linear = replace(full, attention=mixer)
    stack = Stack(depth, (linear, linear, linear, full), Rotary(1e7, fraction=0.25), last_norm=NORM)
    return Decoder(dim, 262_144, Embed(vocab), stack, Head(tied=tied), decoders.INIT)


_ATTENTION = GatedAttention(16, 2, 256, qk_norm=NORM)
_DELTA = GatedDelta(16, 32)
_DENSE = qwen3_next(2048, 4, _ATTENTION, _DELTA, GatedMLP(5632))
_MIXTURE = MoE(512, 10, GatedMLP(512), balance_loss=0.001, shared=GatedExpert(512))


def _keys(kv_heads: int) -> tuple[Key, ...]:
    return decoders.keys(
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        context=32_768,
        kv_heads=kv_heads,
        head_dim=256,
        eps=decoders.eps("rms_norm_eps", 1e-6, f"{ATTN}.qk_norm.eps"),
        rotary=decoders.part_rotary(0.25),
    )


KEYS, KEYS_3_5 = _keys(2), _keys(4)
DELTA = {
    "linear_num_key_heads": "key_heads",
    "linear_num_value_heads": "value_heads",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
    "linear_conv_kernel_dim": "kernel",
    "rms_norm_eps": "eps",
}


def read_config(raw: ConfigReader) -> Model:
    """A Qwen3-Next config.json as our config."""
    model = read_config_3_5(raw, KEYS)
    blocks = [decoders.stack(model).block(i) for i in range(model.decoder.depth)]
    if raw.value("num_experts", 512):
        blocks = mixtures.mixed(raw, blocks, _MIXTURE)
    return decoders.with_blocks(model, blocks)


def read_config_3_5(raw: ConfigReader, keys: Sequence[Key] = KEYS_3_5) -> Any:
    """A Qwen 3.5 config.json as our config."""
    model: Any = read_keys(raw, decoders.with_attention_first(_DENSE, "qwen3_next"), keys)
    raw.only("hidden_act", "silu", "the convolution and the gate here are silu")
    interval = raw.integer("full_attention_interval", 4)
    usual = [KINDS[(i + 1) % interval == 0] for i in range(model.decoder.depth)]
    return decoders.read_hybrid(raw, model, read_part(raw, _DELTA, DELTA), KINDS, usual)


def write_config_3_5(model: Model) -> dict[str, Any]:
    """Our config as a Qwen 3.5 config.json, as far as that can say it."""
    return {
        **decoders.write(decoders.with_attention_first(model, "qwen3_next"), KEYS),
        **write_part(decoders.first_mixer(model, _DELTA), DELTA),
        "layer_types": decoders.write_kinds(model, KINDS),
    }


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Qwen3-Next config.json, as far as that can say it."""
    raw, pattern = write_config_3_5(model), decoders.stack(model).pattern
    if any(isinstance(block.feedforward, MoE) for block in pattern):
        return {**raw, **mixtures.write_mixed(model, "qwen3_next")}
    return {**raw, "num_experts": 0}


_LAYERS = {
    **{name: file for name, file in decoders.ATTENTION.items() if name != "attn.q"},
    **decoders.QK_NORMS,
    "attn.conv": "linear_attn.conv1d",
    "attn.norm": "linear_attn.norm",
    "attn.out_proj": "linear_attn.out_proj",
    **decoders.GATED,
    **mixtures.GATED,
    **decoders.NORMS,
}
NEXT = {"in_proj_qkvz": "in_q in_k in_v in_gate", "in_proj_ba": "learn fade"}
NAMES_3_5 = {
    "in_proj_qkv": "in_q in_k in_v",
    "in_proj_z": "in_gate",
    "in_proj_b": "learn",
    "in_proj_a": "fade",
}


def table(model: Model, names: Mapping[str, str] = NEXT) -> Table:
    """The names of its weights; a file deals rows of several layers out to heads."""
    key_heads = decoders.first_mixer(model, _DELTA).key_heads if names is NEXT else 1
    rows = [(f"linear_attn.{name}", layers, key_heads) for name, layers in names.items()]
    dealt = [
        NameRule(
            f"{THEIRS}.{name}.{end}",
            tuple(f"{OURS}.attn.{layer}.{end}" for layer in layers.split()),
            groups=groups,
        )
        for name, layers, groups in (
            *rows,
            ("self_attn.q_proj", "q gate", decoders.stack(model).heads),
        )
        for end in ("weight", "bias")
    ]
    rates = [
        NameRule(f"{THEIRS}.linear_attn.{name}", f"{OURS}.attn.{name}")
        for name in ("A_log", "dt_bias")
    ]
    return decoders.table(_LAYERS, *dealt, *rates, *mixtures.EXPERTS)


QWEN3_NEXT = Recipe(
    name="qwen3_next",
    paper="Qwen Team 2025, Qwen3-Next; Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464)",
    sizes={"80b-a3b": qwen3_next(2048, 48, _ATTENTION, _DELTA, _MIXTURE)},
    architectures=("Qwen3NextForCausalLM", "Qwen3NextModel"),
    model_type="qwen3_next",
    tokenizer="Qwen/Qwen3-Next-80B-A3B-Instruct",
    read_config=read_config,
    write_config=write_config,
    weights=table,
)


def _qwen3_5(dim: int, depth: int, heads: int, values: int, hidden: int, tied: bool) -> Decoder:
    attention = replace(_ATTENTION, heads=heads, kv_heads=2 if heads == 8 else 4)
    delta = replace(_DELTA, value_heads=values)
    return qwen3_next(dim, depth, attention, delta, GatedMLP(hidden), 248_320, tied)


QWEN3_5 = Recipe(
    name="qwen3_5",
    paper="Qwen Team 2026, Qwen3.5; Yang et al. 2024, Gated Delta Networks (arXiv 2412.06464)",
    sizes={
        "0.8b": _qwen3_5(1024, 24, 8, 16, 3584, True),
        "2b": _qwen3_5(2048, 24, 8, 16, 6144, True),
        "4b": _qwen3_5(2560, 32, 16, 32, 9216, True),
        "9b": _qwen3_5(4096, 32, 16, 32, 12_288, False),
        "27b": _qwen3_5(5120, 64, 24, 48, 17_408, False),
    },
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5TextModel"),
    model_type="qwen3_5_text",
    tokenizer="Qwen/Qwen3.5-0.8B",
    read_config=read_config_3_5,
    write_config=write_config_3_5,
    weights=partial(table, names=NAMES_3_5),
)

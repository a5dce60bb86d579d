"""Qwen3-Next: a gated delta net in three of four blocks, attention with a gate in the fourth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from . import decoders
from .decoders import ATTN
from .gated_expert import GatedExpert
from .keys import MOST_HEADS, MOST_HIDDEN, Key, read_keys
from .mixers import GatedAttention, GatedDelta
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-6, offset=1.0)
KINDS = ("linear_attention", "full_attention")


def qwen3_next(
    dim: int, depth: int, attention: GatedAttention, delta: GatedDelta, think: GatedMLP | MoE
) -> Decoder:
    """The shape of Qwen3-Next: 151,936 tokens, 262,144 positions."""
    full = Block(attention, think, NORM)
    mixer: Any = delta
    linear = replace(full, attention=mixer)
    stack = Stack(depth, (linear, linear, linear, full), Rotary(1e7, fraction=0.25), last_norm=NORM)
    return Decoder(dim, 262_144, Embed(151_936), stack, Head(tied=False), decoders.INIT)


_ATTENTION = GatedAttention(16, 2, 256, qk_norm=NORM)
_DELTA = GatedDelta(16, 32)
_DENSE = qwen3_next(2048, 4, _ATTENTION, _DELTA, GatedMLP(5632))
_MIXTURE = MoE(512, 10, GatedMLP(512), balance_loss=0.001, shared=GatedExpert(512))
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
    model: Any = read_keys(raw, decoders.with_attention_first(_DENSE, "qwen3_next"), KEYS)
    block, depth = decoders.first_block(model), model.decoder.depth
    raw.only("hidden_act", "silu", "the convolution and the gate here are silu")
    delta: Any = GatedDelta(
        raw.integer("linear_num_key_heads", 16, most=MOST_HEADS),
        raw.integer("linear_num_value_heads", 32, most=MOST_HEADS),
        raw.integer("linear_key_head_dim", 128, most=MOST_HEADS),
        raw.integer("linear_value_head_dim", 128, most=MOST_HEADS),
        raw.integer("linear_conv_kernel_dim", 4, most=64),
        raw.number("rms_norm_eps", 1e-6, most=1.0),
    )
    interval = raw.integer("full_attention_interval", 4)
    kinds = decoders.read_kinds(raw, KINDS, [KINDS[(i + 1) % interval == 0] for i in range(depth)])
    mixes = _mixtures(raw, depth)
    mixture = _mixture(raw) if any(mixes) else None
    return decoders.with_blocks(
        model,
        [
            replace(
                block,
                attention=block.attention if kind == KINDS[1] else delta,
                feedforward=mixture if mix else block.feedforward,
            )
            for kind, mix in zip(kinds, mixes, strict=True)
        ],
    )


def _mixture(raw: ConfigReader) -> MoE:
    return MoE(
        raw.integer("num_experts", 512, most=MOST_HEADS),
        raw.integer("num_experts_per_tok", 10, most=MOST_HEADS),
        GatedMLP(raw.integer("moe_intermediate_size", 512, most=MOST_HIDDEN)),
        normalize=raw.flag("norm_topk_prob", True),
        balance_loss=raw.number("router_aux_loss_coef", 0.001),
        shared=GatedExpert(raw.integer("shared_expert_intermediate_size", 512, most=MOST_HIDDEN)),
    )


def _mixtures(raw: ConfigReader, depth: int) -> list[bool]:
    """Which blocks have a mixture of experts."""
    dense, step = raw.value("mlp_only_layers", []), raw.integer("decoder_sparse_step", 1)
    raw.must(isinstance(dense, list), "mlp_only_layers", "a list of blocks' numbers")
    experts = raw.value("num_experts", 512) != 0
    return [experts and i not in dense and (i + 1) % step == 0 for i in range(depth)]


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Qwen3-Next config.json, as far as that can say it."""
    stack = decoders.stack(model)
    mixers = [stack.block(i).attention for i in range(stack.depth)]
    delta = next((mixer for mixer in mixers if isinstance(mixer, GatedDelta)), _DELTA)
    return {
        **decoders.write(decoders.with_attention_first(model, "qwen3_next"), KEYS),
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.kernel,
        "layer_types": [KINDS[isinstance(mixer, GatedAttention)] for mixer in mixers],
        **_write_experts([stack.block(i).feedforward for i in range(stack.depth)]),
    }


def _write_experts(thinks: Sequence[Any]) -> dict[str, Any]:
    mixture = next((think for think in thinks if isinstance(think, MoE)), None)
    if mixture is None:
        return {"num_experts": 0}
    dense = [i for i, think in enumerate(thinks) if not isinstance(think, MoE)]
    return {
        "intermediate_size": getattr(thinks[dense[0]] if dense else mixture.expert, "hidden", 0),
        "moe_intermediate_size": mixture.expert.hidden,
        "shared_expert_intermediate_size": getattr(mixture.shared, "hidden", 1),
        "num_experts": mixture.experts,
        "num_experts_per_tok": mixture.top_k,
        "norm_topk_prob": mixture.normalize,
        "router_aux_loss_coef": mixture.balance_loss,
        "mlp_only_layers": dense,
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
    "ffn.router": "mlp.gate",
    "ffn.shared.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared.up": "mlp.shared_expert.up_proj",
    "ffn.shared.down": "mlp.shared_expert.down_proj",
    "ffn.shared.share": "mlp.shared_expert_gate",
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
    experts = [
        NameRule(
            f"{decoders.THEIRS}.mlp.experts.{{e}}.{layer}_proj.weight",
            f"{decoders.OURS}.ffn.{layer}",
        )
        for layer in ("gate", "up", "down")
    ]
    return decoders.table(_LAYERS, *queries, *rates, *experts)


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

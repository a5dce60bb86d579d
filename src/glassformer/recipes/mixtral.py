"""Mixtral: a Llama whose every feed-forward is a mixture of eight experts, two for each token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Attention, Block, Decoder, Embed, GatedMLP, Head, Model, MoE, RMSNorm, Rotary, Stack
from ..errors import UserError
from .decoders import (
    ATTENTION,
    INIT,
    MANY,
    NORMS,
    OURS,
    THEIRS,
    norm_eps,
    read_attention,
    read_decoder,
    read_gated,
    read_rotary,
    read_window,
    table,
    window_size,
    write_decoder,
)
from .recipe import ConfigReader, Recipe, Rule


def mixtral(dim: int, depth: int, heads: int, hidden: int, context: int, balance: float) -> Decoder:
    """The shape of Mixtral: 8 key-value heads, 32,000 tokens."""
    block = Block(Attention(heads, 8), MoE(8, 2, GatedMLP(hidden), balance=balance), RMSNorm())
    stack = Stack(depth, (block,), Rotary(1e6), last_norm=RMSNorm())
    return Decoder(dim, context, Embed(32_000), stack, Head(tied=False), INIT)


def read(raw: ConfigReader) -> Model:
    """A Mixtral config.json as our config; ``router_aux_loss_coef`` weighs our own load-balancing loss."""
    raw.only("router_jitter_noise", 0.0, "no router here shakes what it reads")
    attention = replace(read_attention(raw, kv_heads=8), mask=read_window(raw))
    mixture = MoE(
        raw.whole("num_local_experts", 8, most=MANY),
        raw.whole("num_experts_per_tok", 2, most=MANY),
        read_gated(raw),
        balance=raw.number("router_aux_loss_coef", 0.001),
    )
    block = Block(attention, mixture, RMSNorm(raw.number("rms_norm_eps", 1e-5, most=1.0)))
    return read_decoder(raw, block, read_rotary(raw, 1e6), context=131_072)


def write(model: Model) -> dict[str, Any]:
    """Our config as a Mixtral config.json, as far as that can say it."""
    block, raw = write_decoder(model, "mixtral")
    mixture = block.feedforward
    if not isinstance(mixture, MoE):
        raise UserError("The mixtral layout holds only mixtures of experts.")
    return {
        **raw,
        "rms_norm_eps": norm_eps(block),
        "num_local_experts": mixture.experts,
        "num_experts_per_tok": mixture.top_k,
        "router_aux_loss_coef": mixture.balance,
        "sliding_window": window_size(model),
    }


_MIXTURE = f"{THEIRS}.block_sparse_moe"

MIXTRAL = Recipe(
    name="mixtral",
    paper="Jiang et al. 2024, Mixtral of Experts (arXiv 2401.04088)",
    sizes={
        "8x7b": mixtral(4096, 32, 32, 14_336, 32_768, balance=0.02),
        "8x22b": mixtral(6144, 56, 48, 16_384, 65_536, balance=0.001),
    },
    architectures=("MixtralForCausalLM", "MixtralModel"),
    model_type="mixtral",
    tokenizer="mistralai/Mixtral-8x7B-v0.1",
    read=read,
    write=write,
    weights=table(
        {**ATTENTION, **NORMS},
        Rule(f"{_MIXTURE}.gate.weight", f"{OURS}.ffn.router.weight"),
        Rule(f"{_MIXTURE}.experts.{{e}}.w1.weight", f"{OURS}.ffn.gate"),
        Rule(f"{_MIXTURE}.experts.{{e}}.w2.weight", f"{OURS}.ffn.down"),
        Rule(f"{_MIXTURE}.experts.{{e}}.w3.weight", f"{OURS}.ffn.up"),
    ),
)

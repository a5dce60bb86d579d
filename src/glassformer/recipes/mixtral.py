"""Mixtral: a Llama whose every feed-forward is a mixture of eight experts, two for each token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Attention, Block, Decoder, Embed, GatedMLP, Head, Model, MoE, RMSNorm, Rotary, Stack
from ..errors import UserError
from . import decoders
from .recipe import ConfigReader, Recipe, Rule


def mixtral(dim: int, depth: int, heads: int, hidden: int, context: int, balance: float) -> Decoder:
    """The shape of Mixtral: 8 key-value heads, 32,000 tokens."""
    block = Block(Attention(heads, 8), MoE(8, 2, GatedMLP(hidden), balance=balance), RMSNorm())
    stack = Stack(depth, (block,), Rotary(1e6), last_norm=RMSNorm())
    return Decoder(dim, context, Embed(32_000), stack, Head(tied=False), decoders.INIT)


def read_config(raw: ConfigReader) -> Model:
    """A Mixtral config.json as our config; ``router_aux_loss_coef`` weighs our own load-balancing loss."""
    raw.only("router_jitter_noise", 0.0, "no router here shakes what it reads")
    attention = replace(decoders.read_attention(raw, kv_heads=8), mask=decoders.read_window(raw))
    mixture = MoE(
        raw.whole("num_local_experts", 8, most=decoders.MANY),
        raw.whole("num_experts_per_tok", 2, most=decoders.MANY),
        decoders.read_gated(raw),
        balance=raw.number("router_aux_loss_coef", 0.001),
    )
    block = Block(attention, mixture, RMSNorm(raw.number("rms_norm_eps", 1e-5, most=1.0)))
    return decoders.read_decoder(raw, block, decoders.read_rotary(raw, 1e6), context=131_072)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Mixtral config.json, as far as that can say it."""
    raw = decoders.write_decoder(model, "mixtral", window=True)
    mixture = decoders.first_block(model).feedforward
    if not isinstance(mixture, MoE):
        raise UserError("The mixtral layout holds only mixtures of experts.")
    return {
        **raw,
        "num_local_experts": mixture.experts,
        "num_experts_per_tok": mixture.top_k,
        "router_aux_loss_coef": mixture.balance,
    }


_MIXTURE = f"{decoders.THEIRS}.block_sparse_moe"

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
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {**decoders.ATTENTION, **decoders.NORMS},
        Rule(f"{_MIXTURE}.gate.weight", f"{decoders.OURS}.ffn.router.weight"),
        Rule(f"{_MIXTURE}.experts.{{e}}.w1.weight", f"{decoders.OURS}.ffn.gate"),
        Rule(f"{_MIXTURE}.experts.{{e}}.w2.weight", f"{decoders.OURS}.ffn.down"),
        Rule(f"{_MIXTURE}.experts.{{e}}.w3.weight", f"{decoders.OURS}.ffn.up"),
    ),
)

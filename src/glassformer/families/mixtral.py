"""Mixtral: a Llama whose every feed-forward is a mixture of eight experts, two for each token."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    MoE,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import FFN
from .keys import Key
from .names import NameRule
from .recipe import Recipe


def mixtral(dim: int, depth: int, heads: int, hidden: int, context: int, balance: float) -> Decoder:
    """The shape of Mixtral: 8 key-value heads, 32,000 tokens."""
    block = Block(Attention(heads, 8), MoE(8, 2, GatedMLP(hidden), balance_loss=balance), RMSNorm())
    stack = Stack(depth, (block,), Rotary(1e6), last_norm=RMSNorm())
    return Decoder(dim, context, Embed(32_000), stack, Head(tied=False), decoders.INIT)


KEYS = decoders.keys(
    Key.only("router_jitter_noise", 0.0, "no router here shakes what it reads"),
    *decoders.expert_keys("num_local_experts", 8, 2),
    decoders.window(),
    context=131_072,
    kv_heads=8,
    mlp=f"{FFN}.expert",
    eps=decoders.eps("rms_norm_eps", 1e-5),
    rotary=decoders.rotary(1e6),
)
read_config = decoders.config_reader(mixtral(4096, 32, 32, 14_336, 32_768, 0.001), KEYS)
write_config = decoders.writer(KEYS)
MIXTURE = f"{decoders.THEIRS}.block_sparse_moe"
EXPERTS = (
    NameRule(f"{MIXTURE}.gate.weight", f"{decoders.OURS}.ffn.router.weight"),
    NameRule(f"{MIXTURE}.experts.{{e}}.w1.weight", f"{decoders.OURS}.ffn.gate"),
    NameRule(f"{MIXTURE}.experts.{{e}}.w2.weight", f"{decoders.OURS}.ffn.down"),
    NameRule(f"{MIXTURE}.experts.{{e}}.w3.weight", f"{decoders.OURS}.ffn.up"),
)
WEIGHTS = decoders.table({**decoders.ATTENTION, **decoders.NORMS}, *EXPERTS)
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
    weights=WEIGHTS,
)

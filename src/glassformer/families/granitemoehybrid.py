"""Granite 4: Granite's multipliers on blocks of Mamba-2 and of attention, with routed experts beside
the network that every token passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    Model,
    MoE,
    NoPosition,
    RMSNorm,
    Stack,
)
from . import decoders, granite, mamba2, mixtures
from .decoders import OURS, THEIRS
from .keys import MOST_HEADS, Key, read_keys, read_part, write_part
from .mixers import Mamba2
from .names import NameRule
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-5)
KINDS = ("linear_attention", "full_attention")


def granite_h(
    dim: int, attention: Attention, mixer: Mamba2, think: GatedMLP | MoE, divisor: float
) -> Decoder:
    """The shape of Granite 4.0 H: attention in four of 40 blocks, 100,352 tokens, 131,072 positions."""
    full = Block(attention, think, NORM, residual_scale=0.22)
    scan: Any = mixer
    pattern = [replace(full, attention=attention if i == 5 else scan) for i in range(10)]
    stack = Stack(40, tuple(pattern), NoPosition(), last_norm=NORM)
    head = Head(scale=1 / divisor)
    return Decoder(dim, 131_072, Embed(100_352, scale=12.0), stack, head, decoders.INIT)


def _positions(raw: ConfigReader) -> Any:
    kind = raw.value("position_embedding_type", "nope")
    raw.must(kind in ("nope", "rope"), "position_embedding_type", '"rope" or "nope"')
    return decoders.read_rotary(raw) if kind == "rope" else NoPosition()


WORDS = mamba2.mixer_words(
    "mamba_n_heads mamba_d_head mamba_d_state mamba_n_groups mamba_d_conv mamba_proj_bias "
    "mamba_conv_bias rms_norm_eps"
)
EXPERTS = {
    "num_local_experts": "experts",
    "num_experts_per_tok": "top_k",
    "intermediate_size": "expert.hidden",
    "shared_intermediate_size": "shared.hidden",
    "router_aux_loss_coef": "balance_loss",
}
MIXTURE = MoE(8, 2, GatedMLP(11_008), balance_loss=0.001, shared=GatedMLP(1024))
KEYS = decoders.keys(
    *granite.MULTIPLIERS,
    Key.only("hidden_act", "silu", "the convolution and the gate here are silu"),
    context=2048,
    rotary=Key(
        "position_embedding_type",
        "decoder.position",
        _positions,
        lambda position: "rope" if position["type"] == "Rotary" else None,
    ),
)
_SIZES = {
    "4.0-h-micro": granite_h(2048, Attention(32, 8, scale=1 / 64), Mamba2(64), GatedMLP(8192), 8.0),
    "4.0-h-tiny": granite_h(
        1536,
        Attention(12, 4, scale=1 / 128),
        Mamba2(48),
        MoE(64, 6, GatedMLP(512), balance_loss=0.001, shared=GatedMLP(1024)),
        6.0,
    ),
    "4.0-h-small": granite_h(
        4096,
        Attention(32, 8, scale=1 / 128),
        Mamba2(128),
        MoE(72, 10, GatedMLP(768), balance_loss=0.001, shared=GatedMLP(1536)),
        16.0,
    ),
}


def read_config(raw: ConfigReader) -> Any:
    """A Granite 4 config.json as our config."""
    plain = decoders.with_attention_first(_SIZES["4.0-h-micro"], "granitemoehybrid")
    model = read_keys(raw, plain, KEYS)
    width = raw.integer("mamba_expand", 2, most=64) * model.dim
    if raw.value("mamba_d_head", "auto") == "auto":
        heads = raw.integer("mamba_n_heads", 128, most=MOST_HEADS)
        raw = replace(raw, table={**raw.table, "mamba_d_head": width // heads})
    mixer = mamba2.read_mixer(raw, WORDS, Mamba2(128, state=256, eps=1e-6))
    mamba2.check_expansion(raw, "mamba_expand", mixer, model.dim)
    full = replace(decoders.first_block(model), feedforward=_feedforward(raw))
    model = decoders.with_blocks(model, [full])
    return decoders.read_hybrid(raw, model, mixer, KINDS, KINDS[:1] * model.decoder.depth)


def _feedforward(raw: ConfigReader) -> Any:
    """The network that every token passes, with experts beside it where the file has some."""
    if mixtures.count(raw, "num_local_experts", 8):
        return read_part(raw, MIXTURE, EXPERTS)
    return read_part(raw, MIXTURE.shared, {"shared_intermediate_size": "hidden"})


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Granite 4 config.json, as far as that can say it."""
    think: Any = decoders.first_block(model).feedforward
    experts = {"num_local_experts": 0, "shared_intermediate_size": getattr(think, "hidden", 1)}
    return {
        **mamba2.write_mixer(model, WORDS, "mamba_expand"),
        **decoders.write(decoders.with_attention_first(model, "granitemoehybrid"), KEYS),
        **(write_part(think, EXPERTS) if isinstance(think, MoE) else experts),
        "layer_types": decoders.write_kinds(model, KINDS),
    }


_MOE, _FFN = f"{THEIRS}.block_sparse_moe", f"{OURS}.ffn"
SHARED = [
    NameRule(f"{THEIRS}.shared_mlp.{name}.weight", layers)
    for at in (_FFN, f"{_FFN}.shared")
    for name, layers in (
        ("input_linear", (f"{at}.gate.weight", f"{at}.up.weight")),
        ("output_linear", (f"{at}.down.weight",)),
    )
]
GRANITEMOEHYBRID = Recipe(
    name="granitemoehybrid",
    paper="IBM 2025, Granite 4.0; Dao & Gu 2024, Transformers are SSMs (arXiv 2405.21060)",
    sizes=_SIZES,
    architectures=("GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"),
    model_type="granitemoehybrid",
    tokenizer="ibm-granite/granite-4.0-h-micro",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {
            **decoders.ATTENTION,
            **decoders.NORMS,
            "ffn.router": "block_sparse_moe.router.layer",
        },
        *mamba2.mixer_rules(f"{THEIRS}.mamba", f"{OURS}.attn"),
        *SHARED,
        NameRule(
            f"{_MOE}.input_linear.weight",
            (f"{_FFN}.gate", f"{_FFN}.up"),
            axes="e (2 d) c -> (2 e) d c",
        ),
        NameRule(f"{_MOE}.output_linear.weight", f"{_FFN}.down"),
    ),
)

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
from .keys import MOST_HEADS, MOST_HIDDEN, Key, read_keys
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


MIXER = mamba2.mixer_keys(
    "mamba_n_heads mamba_d_head mamba_d_state mamba_n_groups mamba_d_conv mamba_proj_bias "
    "mamba_conv_bias rms_norm_eps",
    state=256,
    groups=1,
    eps=1e-6,
)
KEYS = decoders.keys(
    *granite.MULTIPLIERS,
    context=2048,
    rotary=Key(
        "position_embedding_type",
        "decoder.position",
        _positions,
        lambda position: "rope" if position["type"] == "Rotary" else None,
    ),
)
_SIZES = {
    "4.0-h-micro": granite_h(
        2048, Attention(32, 8, scale=1 / 64), Mamba2(64), GatedMLP(8192), 8.0
    ),
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


def read_config(raw: ConfigReader) -> Model:
    """A Granite 4 config.json as our config."""
    plain = decoders.with_attention_first(_SIZES["4.0-h-micro"], "granitemoehybrid")
    model: Any = read_keys(raw, replace(plain, decoder=replace(plain.decoder, depth=1)), KEYS)
    full = decoders.first_block(model)
    width = raw.integer("mamba_expand", 2, most=64) * model.dim
    if raw.value("mamba_d_head", "auto") == "auto":
        heads = raw.integer("mamba_n_heads", 128, most=MOST_HEADS)
        raw = replace(raw, table={**raw.table, "mamba_d_head": width // heads})
    mixer = mamba2.read_mixer(raw, MIXER)
    mamba2.check_expansion(raw, "mamba_expand", mixer, model.dim)
    raw.only("hidden_act", "silu", "the convolution and the gate here are silu")
    full = replace(full, feedforward=_feedforward(raw, full.feedforward))
    kinds = decoders.read_kinds(raw, KINDS, KINDS[:1] * model.decoder.depth)
    return decoders.with_blocks(
        model,
        [full if kind == KINDS[1] else replace(full, attention=mixer) for kind in kinds],
    )


def _feedforward(raw: ConfigReader, expert: Any) -> GatedMLP | MoE:
    """The network that every token passes, with experts beside it where the file has some."""
    hidden = raw.integer("shared_intermediate_size", 1024, most=MOST_HIDDEN)
    shared = replace(expert, hidden=hidden)
    experts = mixtures.count(raw, "num_local_experts", 8)
    top = raw.integer("num_experts_per_tok", 2, most=MOST_HEADS)
    weight = raw.number("router_aux_loss_coef", 0.001)
    if not experts:
        return shared
    return MoE(experts, top, expert, balance_loss=weight, shared=shared)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Granite 4 config.json, as far as that can say it."""
    kinds = [KINDS[isinstance(mixer, Attention)] for mixer in decoders.mixers(model)]
    mixture = decoders.first_block(model).feedforward
    words: dict[str, Any] = {"num_local_experts": 0}
    if isinstance(mixture, MoE):
        words = {
            "num_local_experts": mixture.experts,
            "num_experts_per_tok": mixture.top_k,
            "router_aux_loss_coef": mixture.balance_loss,
        }
    shared = getattr(mixture, "shared", None) or mixture
    return {
        **mamba2.write_mixer(model, MIXER, "mamba_expand"),
        **decoders.write(decoders.with_attention_first(model, "granitemoehybrid"), KEYS),
        **words,
        "shared_intermediate_size": getattr(shared, "hidden", 1),
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
    }


_MOE, _FFN = f"{THEIRS}.block_sparse_moe", f"{OURS}.ffn"
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
        *(
            NameRule(f"{THEIRS}.shared_mlp.{name}.weight", layers)
            for at in (_FFN, f"{_FFN}.shared")
            for name, layers in {
                "input_linear": (f"{at}.gate.weight", f"{at}.up.weight"),
                "output_linear": f"{at}.down.weight",
            }.items()
        ),
        NameRule(
            f"{_MOE}.input_linear.weight", (f"{_FFN}.gate", f"{_FFN}.up"), axes="e (2 d) c -> (2 e) d c"
        ),
        NameRule(f"{_MOE}.output_linear.weight", f"{_FFN}.down"),
    ),
)

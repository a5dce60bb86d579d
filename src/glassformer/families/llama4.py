"""Llama 4: rotary blocks that see chunks, blocks without positions that see everything, and experts
whose input is scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Block,
    Chunk,
    Decoder,
    Embed,
    Full,
    GatedMLP,
    Head,
    Llama3Scaling,
    Model,
    NoPosition,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import ATTN, OURS, THEIRS
from .keys import MOST_HIDDEN, MOST_POSITIONS, Key, read_keys, read_part, write_part
from .mixers import TunedAttention
from .names import NameRule
from .recipe import ConfigReader, Recipe
from .routed import ScaledInputMoE

NORM = RMSNorm(1e-5)
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
EXPERTS = {
    "num_local_experts": "experts",
    "num_experts_per_tok": "top_k",
    "intermediate_size": "expert.hidden",
    "router_aux_loss_coef": "balance_loss",
}
TUNING = {"floor_scale": "length", "attn_scale": "strength"}


def llama4(
    experts: int, every: int, context: int, qk_norm: RMSNorm | None, rope: Rotary
) -> Decoder:
    """The shape of Llama 4: width 5,120, 48 blocks, 40 heads and 8 key-value heads of 128, 202,048
    tokens, and experts in each block or in every second."""
    mixture = replace(MIXTURE, experts=experts)
    thinks = (mixture, mixture) if every == 1 else (GatedMLP(16_384), mixture)
    attention = Attention(40, 8, 128, qk_norm=qk_norm, mask=Chunk(8192))
    turned = [Block(attention, thinks[i % 2], NORM) for i in range(3)]
    last = Block(TunedAttention(40, 8, 128), mixture, NORM, position=NoPosition())
    stack = Stack(48, (*turned, last), rope, last_norm=NORM)
    return Decoder(5120, context, Embed(202_048), stack, Head(tied=False), decoders.INIT)


def _rotary(raw: ConfigReader) -> Rotary:
    # a norm after the turn takes a size of what turns out again
    kinds = ("default", "linear", "llama3")
    return replace(decoders.read_rotary(raw, 500_000.0, kinds=kinds), interleaved=True)


KEYS = decoders.without(
    decoders.keys(
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        Key.only("router_jitter_noise", 0.0, "no router here shakes what it reads"),
        context=131_072,
        kv_heads=8,
        head_dim=128,
        eps=decoders.eps("rms_norm_eps", 1e-5),
        rotary=Key("", "decoder.position", _rotary),
    ),
    "intermediate_size",
)
SCOUT = llama4(
    16,
    1,
    10_485_760,
    QK_NORM,
    Rotary(500_000.0, scaling=Llama3Scaling(16.0, 1.0, 1.0, 8192), interleaved=True),
)


def read_config(raw: ConfigReader) -> Model:
    """A Llama 4 config.json as our config."""
    plain = Block(Attention(40), GatedMLP(8192), NORM)
    model: Any = read_keys(raw, decoders.with_layers(SCOUT, [plain]), KEYS)
    block, depth = decoders.first_block(model), model.decoder.depth
    mlp: Any = block.feedforward
    dense = replace(mlp, hidden=raw.integer("intermediate_size_mlp", 16_384, most=MOST_HIDDEN))
    shared = replace(mlp, hidden=raw.integer("intermediate_size", 8192, most=MOST_HIDDEN))
    mixture: Any = read_part(raw, replace(MIXTURE, expert=shared, shared=shared), EXPERTS)
    step, interval = (
        raw.integer("interleave_moe_layer_step", 1),
        raw.integer("no_rope_layer_interval", 4),
    )
    mixes = raw.value("moe_layers", list(range(step - 1, depth, step)))
    turns = raw.value("no_rope_layers", None) or [(i + 1) % interval != 0 for i in range(depth)]
    raw.must(isinstance(mixes, list), "moe_layers", "a list of blocks' numbers")
    raw.must(isinstance(turns, list) and len(turns) >= depth, "no_rope_layers", f"{depth} numbers")
    qk_norm = replace(QK_NORM, eps=raw.number("rms_norm_eps", 1e-5, most=1.0))
    turned = unturned = block.attention
    if raw.flag("use_qk_norm", True):
        turned = replace(turned, qk_norm=qk_norm)
    if raw.value("attn_temperature_tuning", True):
        unturned = read_part(raw, TunedAttention(**vars(unturned)), TUNING)
    unsaid = decoders.unsaid(raw, "attention_chunk_size", 8192)
    size = raw.integer("attention_chunk_size", unsaid, most=MOST_POSITIONS)
    blocks = []
    for i, kind in enumerate(
        decoders.read_kinds(raw, KINDS, [KINDS[not t] for t in turns[:depth]])
    ):
        mask = Chunk(size) if kind == KINDS[0] else Full()
        attention = replace(turned if turns[i] else unturned, mask=mask)
        think = mixture if i in mixes else dense
        position = None if turns[i] else NoPosition()
        blocks.append(replace(block, attention=attention, feedforward=think, position=position))
    return decoders.with_blocks(model, blocks)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Llama 4 config.json, as far as that can say it."""
    stack = decoders.stack(model)
    blocks = [stack.block(i) for i in range(stack.depth)]
    masks = [getattr(block.attention, "mask", None) for block in blocks]
    thinks: list[Any] = [block.feedforward for block in blocks]
    mixes = [i for i, think in enumerate(thinks) if isinstance(think, ScaledInputMoE)]
    mixture = thinks[mixes[0]] if mixes else MIXTURE
    tuned = decoders.first_mixer(model, TunedAttention(1))
    return {
        **decoders.write(model, KEYS),
        **write_part(mixture, EXPERTS),
        **write_part(tuned, TUNING),
        "intermediate_size_mlp": next(
            (think.hidden for think in thinks if type(think) is GatedMLP), 1
        ),
        "moe_layers": mixes,
        "attn_temperature_tuning": any(type(b.attention) is TunedAttention for b in blocks),
        "use_qk_norm": any(getattr(b.attention, "qk_norm", None) for b in blocks),
        "attention_chunk_size": next((m.size for m in masks if isinstance(m, Chunk)), 8192),
        "layer_types": [KINDS[not isinstance(mask, Chunk)] for mask in masks],
        "no_rope_layers": [int(block.position is None) for block in blocks],
    }


_MOE = f"{THEIRS}.feed_forward.experts"
LLAMA4 = Recipe(
    name="llama4",
    paper="Meta 2025, The Llama 4 herd",
    sizes={
        "scout-17b-16e": SCOUT,
        "maverick-17b-128e": llama4(128, 2, 1_048_576, None, Rotary(500_000.0, interleaved=True)),
    },
    architectures=("Llama4ForCausalLM", "Llama4TextModel"),
    model_type="llama4_text",
    tokenizer="meta-llama/Llama-4-Scout-17B-16E",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {
            **decoders.ATTENTION,
            **decoders.NORMS,
            "ffn.router": "feed_forward.router",
            **{
                f"ffn.{inner}{layer}": f"feed_forward.{outer}{layer}_proj"
                for inner, outer in (("", ""), ("shared.", "shared_expert."))
                for layer in ("gate", "up", "down")
            },
        },
        NameRule(
            f"{_MOE}.gate_up_proj",
            (f"{OURS}.ffn.gate", f"{OURS}.ffn.up"),
            axes="e c (2 d) -> (2 e) d c",
        ),
        NameRule(f"{_MOE}.down_proj", f"{OURS}.ffn.down", transpose=True),
    ),
)

"""Granite: a Llama with four multipliers: of embeddings, scores, what is added to the stream, and
logits."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import ATTN, BLOCK, FFN
from .keys import Key
from .recipe import Recipe


def granite(dim: int, hidden: int, scale: float, divisor: float) -> Decoder:
    """The shape of Granite 3: 40 blocks, 32 heads, 49,155 tokens, 4,096 positions."""
    attention = Attention(32, 8, scale=scale)
    block = Block(attention, GatedMLP(hidden), RMSNorm(), residual_scale=0.22)
    stack = Stack(40, (block,), Rotary(), last_norm=RMSNorm())
    head = Head(scale=1 / divisor)
    return Decoder(dim, 4096, Embed(49_155, scale=12.0), stack, head, decoders.INIT)


MULTIPLIERS = (
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    Key.number("embedding_multiplier", "embed.scale", 1.0),
    Key.number("attention_multiplier", f"{ATTN}.scale", 1.0),
    Key.number("residual_multiplier", f"{BLOCK}.residual_scale", 1.0),
    Key(
        "logits_scaling",
        "head.scale",
        lambda raw: 1 / raw.number("logits_scaling", 1.0, least=1e-9),
        lambda scale: round(1 / scale, 9),
    ),
)
KEYS = decoders.keys(Key.flag("mlp_bias", f"{FFN}.bias", False), *MULTIPLIERS, context=2048)
read_config = decoders.config_reader(granite(2048, 8192, 1 / 64, 8.0), KEYS)
write_config = decoders.writer(KEYS)

GRANITE = Recipe(
    name="granite",
    paper="Granite Team, IBM 2024, Granite 3.0 Language Models",
    sizes={
        "3.0-2b": granite(2048, 8192, 1 / 64, 8.0),
        "3.0-8b": granite(4096, 12_800, 1 / 128, 16.0),
    },
    architectures=("GraniteForCausalLM", "GraniteModel"),
    model_type="granite",
    tokenizer="ibm-granite/granite-3.0-2b-base",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}),
)

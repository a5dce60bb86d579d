"""Mistral: a Llama with few key-value heads and, in its first version, a sliding window."""

from __future__ import annotations

from typing import Any

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    Full,
    GatedMLP,
    Head,
    MaskRule,
    Model,
    RMSNorm,
    Rotary,
    Stack,
    Window,
)
from . import decoders
from .keys import Key
from .recipe import Recipe


def mistral(
    context: int = 32_768,
    vocab: int = 32_000,
    theta: float = 1e6,
    mask: MaskRule = Full(),
    dim: int = 4096,
    depth: int = 32,
    head_dim: int | None = None,
) -> Decoder:
    """The shape of Mistral: 32 heads, 8 of keys and values, 14,336 wide inside."""
    block = Block(Attention(32, 8, head_dim, mask=mask), GatedMLP(14_336), RMSNorm())
    stack = Stack(depth, (block,), Rotary(theta), last_norm=RMSNorm())
    return Decoder(dim, context, Embed(vocab), stack, Head(tied=False), decoders.INIT)


KEYS = decoders.keys(
    Key.only("layer_types", None, "the blocks of a Mistral all see the same"),
    decoders.window(4096),
    context=131_072,
    kv_heads=8,
)
read_config = decoders.config_reader(mistral(), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Mistral config.json, as far as that can say it."""
    decoders.even_heads(model, "mistral")
    return decoders.write(model, KEYS)


MISTRAL = Recipe(
    name="mistral",
    paper="Jiang et al. 2023, Mistral 7B (arXiv 2310.06825)",
    sizes={
        "7b-v0.1": mistral(theta=10_000.0, mask=Window(4096)),
        "7b-v0.2": mistral(),
        "7b-v0.3": mistral(vocab=32_768),
        "nemo-12b": mistral(131_072, 131_072, dim=5120, depth=40, head_dim=128),
    },
    architectures=("MistralForCausalLM", "MistralModel"),
    model_type="mistral",
    tokenizer="mistralai/Mistral-7B-v0.1",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}),
)

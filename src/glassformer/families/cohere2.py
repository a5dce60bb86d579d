"""Command R7B (Cohere 2): a parallel block; windows with positions, and full views without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    Full,
    GatedMLP,
    Head,
    LayerNorm,
    Model,
    NoPosition,
    Rotary,
    Stack,
    Window,
)
from . import decoders
from .decoders import ATTN
from .keys import MOST_POSITIONS, Key, read_keys
from .recipe import ConfigReader, Recipe


def cohere2(dim: int, depth: int, heads: int, hidden: int, scale: float) -> Decoder:
    """The shape of Command R7B: windows of 4,096 in three of four blocks, 256,000 tokens."""
    norm = LayerNorm(bias=False)
    block = Block(Attention(heads, 8, mask=Window(4096)), GatedMLP(hidden), norm, place="parallel")
    full = replace(block, attention=replace(block.attention, mask=Full()), position=NoPosition())
    position = Rotary(50_000.0, interleaved=True)
    stack = Stack(depth, (block, block, block, full), position, last_norm=norm)
    return Decoder(dim, 132_096, Embed(256_000), stack, Head(scale=scale), decoders.INIT)


def _turned(raw: ConfigReader) -> Rotary:
    return replace(decoders.read_rotary(raw), interleaved=True)


KEYS = decoders.without(
    decoders.keys(
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        Key.number("logit_scale", "head.scale", 0.0625),
        context=8192,
        tied=True,
        eps=decoders.eps("layer_norm_eps", 1e-5),
        rotary=Key("", "decoder.position", _turned),
    ),
    "head_dim",
)


def read_config(raw: ConfigReader) -> Model:
    """A Cohere 2 config.json as our config."""
    plain = cohere2(4096, 4, 32, 14_336, 0.25)
    model = read_keys(raw, decoders.with_blocks(plain, [decoders.first_block(plain)]), KEYS)
    size = raw.integer(
        "sliding_window", decoders.unsaid(raw, "sliding_window", 4096), most=MOST_POSITIONS
    )
    every = raw.integer("sliding_window_pattern", 4)
    slides = [(i + 1) % every != 0 for i in range(model.decoder.depth)]
    blocks = decoders.with_masks(model, decoders.read_windows(raw, size, slides))
    return decoders.with_blocks(
        model,
        [
            block
            if isinstance(block.attention.mask, Window)
            else replace(block, position=NoPosition())
            for block in blocks
        ],
    )


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Cohere 2 config.json, as far as that can say it."""
    return {
        **decoders.write(model, KEYS),
        "sliding_window": decoders.window_size(model) or 4096,
        "layer_types": decoders.write_windows(model),
    }


COHERE2 = Recipe(
    name="cohere2",
    paper="Cohere 2024, Command R7B; Yang et al. 2025, Rope to Nope and Back Again (arXiv "
    "2501.18795)",
    sizes={"command-r7b": cohere2(4096, 32, 32, 14_336, 0.25)},
    architectures=("Cohere2ForCausalLM", "Cohere2Model"),
    model_type="cohere2",
    tokenizer="CohereLabs/c4ai-command-r7b-12-2024",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {**decoders.ATTENTION, **decoders.GATED, "attn_norm": "input_layernorm"}
    ),
)

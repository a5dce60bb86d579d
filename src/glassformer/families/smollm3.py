"""SmolLM3: a Llama whose every fourth block knows no positions."""

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
    NoPosition,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import ATTN, FFN
from .keys import Key, read_keys
from .recipe import ConfigReader, Recipe


def smollm3(depth: int = 36, context: int = 65_536, theta: float = 5e6) -> Decoder:
    """The shape of SmolLM3: 16 heads, 4 of keys and values, 128,256 tokens."""
    block = Block(Attention(16, 4), GatedMLP(11_008), RMSNorm(1e-6))
    blocks = (*[block] * 3, replace(block, position=NoPosition()))
    stack = Stack(depth, blocks, Rotary(theta), last_norm=RMSNorm(1e-6))
    return Decoder(2048, context, Embed(128_256), stack, Head(), decoders.INIT)


KEYS = decoders.keys(
    Key.only("use_sliding_window", False, "no block of a SmolLM3 slides a window"),
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    Key.flag("mlp_bias", f"{FFN}.bias", False),
    context=32_768,
    kv_heads=4,
    tied=True,
    rotary=decoders.rotary(2e6),
)


def read_config(raw: ConfigReader) -> Model:
    """A SmolLM3 config.json as our config."""
    plain = smollm3(4)
    model = read_keys(raw, decoders.with_blocks(plain, [decoders.first_block(plain)]), KEYS)
    depth, block = model.decoder.depth, decoders.first_block(model)
    decoders.read_windows(raw, None, [False] * depth)
    interval = raw.integer("no_rope_layer_interval", 4)
    turns = raw.value("no_rope_layers", [int((i + 1) % interval != 0) for i in range(depth)])
    fits = isinstance(turns, list) and len(turns) >= depth and all(x in (0, 1) for x in turns)
    raw.must(fits, "no_rope_layers", f"{depth} times 1 (the block turns) or 0")
    still = replace(block, position=NoPosition())
    return decoders.with_blocks(model, [block if turn else still for turn in turns[:depth]])


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a SmolLM3 config.json, as far as that can say it."""
    stack = decoders.stack(model)
    turns = [int(stack.block(i).position is None) for i in range(stack.depth)]
    return {**decoders.write(model, KEYS), "no_rope_layers": turns}


SMOLLM3 = Recipe(
    name="smollm3",
    paper="Bakouch et al. 2025, SmolLM3: smol, multilingual, long-context reasoner",
    sizes={"3b": smollm3()},
    architectures=("SmolLM3ForCausalLM", "SmolLM3Model"),
    model_type="smollm3",
    tokenizer="HuggingFaceTB/SmolLM3-3B",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}),
)

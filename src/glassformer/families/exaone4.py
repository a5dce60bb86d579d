"""EXAONE 4: what a sublayer adds is normed; the larger one slides a window in three of four blocks,
and the fourth knows no positions."""

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
    Llama3Scaling,
    Model,
    NoPosition,
    RMSNorm,
    Rotary,
    Stack,
    Window,
)
from . import decoders
from .decoders import ATTN
from .keys import MOST_POSITIONS, read_keys
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-5)


def exaone4(
    dim: int, depth: int, heads: int, head_dim: int, hidden: int, context: int, slides: bool
) -> Decoder:
    """The shape of EXAONE 4: 8 heads of keys and values, 102,400 tokens."""
    attention = Attention(heads, 8, head_dim, qk_norm=NORM)
    block = Block(attention, GatedMLP(hidden), NORM, place="output")
    windowed = replace(block, attention=replace(attention, mask=Window(4096)))
    still = replace(block, position=NoPosition())
    pattern = (windowed, windowed, windowed, still) if slides else (block,)
    stack = Stack(depth, pattern, Rotary(1e6, scaling=Llama3Scaling(16.0)), last_norm=NORM)
    return Decoder(dim, context, Embed(102_400), stack, Head(tied=not slides), decoders.INIT)


KEYS = decoders.keys(
    context=2048,
    kv_heads=32,
    eps=decoders.eps("rms_norm_eps", 1e-5, f"{ATTN}.qk_norm.eps"),
)


def read_config(raw: ConfigReader) -> Model:
    """An EXAONE 4 config.json as our config."""
    model = read_keys(raw, exaone4(2048, 30, 32, 64, 4096, 65_536, slides=False), KEYS)
    size = raw.integer(
        "sliding_window", decoders.unsaid(raw, "sliding_window", 4096), most=MOST_POSITIONS
    )
    every = _pattern(raw) if size is not None and raw.value("layer_types", None) is None else 1
    slides = [size is not None and (i + 1) % every != 0 for i in range(model.decoder.depth)]
    blocks = decoders.with_masks(model, decoders.read_windows(raw, size, slides))
    # beside windows, what sees everything has no positions
    position = None if size is None else NoPosition()
    return decoders.with_blocks(
        model,
        [
            block if isinstance(block.attention.mask, Window) else replace(block, position=position)
            for block in blocks
        ],
    )


def _pattern(raw: ConfigReader) -> int:
    every: int = raw.integer("sliding_window_pattern", 4)
    return every


def write_config(model: Model) -> dict[str, Any]:
    """Our config as an EXAONE 4 config.json, as far as that can say it."""
    still = any(block.position is not None for block in decoders.stack(model).pattern)
    return {
        **decoders.write(model, KEYS),
        "sliding_window": decoders.window_size(model) or (4096 if still else None),
        "layer_types": decoders.write_windows(model),
    }


EXAONE4 = Recipe(
    name="exaone4",
    paper="LG AI Research 2025, EXAONE 4.0 (arXiv 2507.11407)",
    sizes={
        "1.2b": exaone4(2048, 30, 32, 64, 4096, 65_536, slides=False),
        "32b": exaone4(5120, 64, 40, 128, 27_392, 131_072, slides=True),
    },
    architectures=("Exaone4ForCausalLM", "Exaone4Model"),
    model_type="exaone4",
    tokenizer="LGAI-EXAONE/EXAONE-4.0-1.2B",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {
            **decoders.ATTENTION,
            **decoders.GATED,
            **decoders.QK_NORMS,
            "attn_norm": "post_attention_layernorm",
            "ffn_norm": "post_feedforward_layernorm",
        }
    ),
)

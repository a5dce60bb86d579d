"""Gemma 1 and 2: embeddings scaled by sqrt(dim), gains around one, a GELU gate, wide heads.

Gemma 2 norms before and after each part, caps its scores and logits, and lets every other block see
a window only.
"""

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
    Model,
    RMSNorm,
    Rotary,
    Stack,
    Window,
)
from . import decoders
from .decoders import ATTN
from .keys import ACTIVATIONS, MOST_POSITIONS, Key, read_keys
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-6, offset=1.0)


def gemma(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Gemma: heads of 256, 256,000 tokens, 8,192 positions."""
    block = Block(Attention(heads, kv_heads, 256), GatedMLP(hidden, "gelu_tanh"), NORM)
    stack = Stack(depth, (block,), Rotary(), last_norm=NORM)
    return Decoder(dim, 8192, Embed(256_000, scale=dim**0.5), stack, Head(), decoders.INIT)


def gemma2(
    dim: int, depth: int, heads: int, hidden: int, head_dim: int = 256, over: int = 256
) -> Decoder:
    """The shape of Gemma 2: half as many key-value heads as heads, scores divided by sqrt(over),
    windows of 4,096."""
    attention = Attention(heads, heads // 2, head_dim, scale=over**-0.5, softcap=50.0)
    pattern = tuple(
        Block(
            replace(attention, mask=mask_rule),
            GatedMLP(hidden, "gelu_tanh"),
            NORM,
            place="sandwich",
        )
        for mask_rule in (Window(4096), Full())
    )
    stack = Stack(depth, pattern, Rotary(), last_norm=NORM)
    return Decoder(
        dim, 8192, Embed(256_000, scale=dim**0.5), stack, Head(softcap=30.0), decoders.INIT
    )


SHARED = (
    Key.only("use_bidirectional_attention", False, "a decoder here sees what came before"),
    Key("", "embed.scale", lambda raw: raw.integer("hidden_size") ** 0.5),
    Key.flag("attention_bias", f"{ATTN}.bias", False),
)
KEYS = decoders.keys(
    *SHARED,
    context=8192,
    kv_heads=16,
    head_dim=256,
    tied=True,
    act="gelu_pytorch_tanh",
    acts={**ACTIVATIONS, "gelu": "gelu_tanh"},  # has always meant the approximation
)
read_config = decoders.config_reader(gemma(2048, 18, 8, 1, 16_384), KEYS)
write_config = decoders.writer(KEYS)


def _cap(name: str, place: str, default: float) -> Key:
    return Key(name, place, lambda raw: raw.number(name, decoders.unsaid(raw, name, default)))


QUERY_SCALE = Key(
    "query_pre_attn_scalar",
    f"{ATTN}.scale",
    lambda raw: raw.number("query_pre_attn_scalar", 256.0, least=1e-6) ** -0.5,
    lambda scale: round(scale**-2),
)
KEYS2 = decoders.keys(
    *SHARED,
    QUERY_SCALE,
    _cap("attn_logit_softcapping", f"{ATTN}.softcap", 50.0),
    _cap("final_logit_softcapping", "head.softcap", 30.0),
    context=8192,
    kv_heads=4,
    head_dim=256,
    tied=True,
    act="gelu_pytorch_tanh",
    act_names="hidden_activation hidden_act",
)


def read_config2(raw: ConfigReader) -> Model:
    """A Gemma 2 config.json as our config."""
    plain = gemma2(2304, 2, 8, 9216)
    model = read_keys(
        raw, decoders.with_blocks(plain, decoders.with_masks(plain, [Full(), Full()])), KEYS2
    )
    size = raw.integer(
        "sliding_window", decoders.unsaid(raw, "sliding_window", 4096), most=MOST_POSITIONS
    )
    mask_rules = decoders.read_windows(raw, size, [i % 2 == 0 for i in range(model.decoder.depth)])
    return decoders.with_blocks(model, decoders.with_masks(model, mask_rules))


def write_config2(model: Model) -> dict[str, Any]:
    """Our config as a Gemma 2 config.json, as far as that can say it."""
    decoders.even_heads(model, "gemma2")
    return {
        **decoders.write(model, KEYS2),
        # transformers asks for one even where no block has it
        "sliding_window": decoders.window_size(model) or 4096,
        "layer_types": decoders.write_windows(model),
    }


GEMMA = Recipe(
    name="gemma",
    paper="Gemma Team 2024, Gemma: Open Models Based on Gemini Research and Technology (arXiv "
    "2403.08295)",
    sizes={"2b": gemma(2048, 18, 8, 1, 16_384), "7b": gemma(3072, 28, 16, 16, 24_576)},
    architectures=("GemmaForCausalLM", "GemmaModel"),
    model_type="gemma",
    tokenizer="google/gemma-2b",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}),
)

LAYERS2 = {
    **decoders.ATTENTION,
    **decoders.GATED,
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
GEMMA2 = Recipe(
    name="gemma2",
    paper="Gemma Team 2024, Gemma 2: Improving Open Language Models at a Practical Size (arXiv "
    "2408.00118)",
    sizes={
        "2b": gemma2(2304, 26, 8, 9216),
        "9b": gemma2(3584, 42, 16, 14_336),
        "27b": gemma2(4608, 46, 32, 36_864, head_dim=128, over=144),
    },
    architectures=("Gemma2ForCausalLM", "Gemma2Model"),
    model_type="gemma2",
    tokenizer="google/gemma-2-2b",
    read_config=read_config2,
    write_config=write_config2,
    weights=decoders.table(LAYERS2),
)

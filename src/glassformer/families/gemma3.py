"""Gemma 3 for text: a Gemma 2 with normed queries and keys, without caps; five of six blocks slide a
window and turn faster."""

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
    Rotary,
    Stack,
    Window,
)
from . import decoders, gemma
from .decoders import ATTN
from .keys import MOST_POSITIONS, Key, read_keys
from .recipe import ConfigReader, Recipe, tile

LOCAL, GLOBAL = 10_000.0, 1_000_000.0  # theta of blocks with a window, and of the others


def gemma3(dim: int, depth: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Gemma 3: 4 heads of 256, windows of 512, 262,144 tokens, 32,768 positions."""
    attention = Attention(4, kv_heads, 256, qk_norm=gemma.NORM, scale=256**-0.5)
    block = Block(attention, GatedMLP(hidden, "gelu_tanh"), gemma.NORM, place="sandwich")
    slides = replace(block, attention=replace(attention, mask=Window(512)), position=Rotary(LOCAL))
    blocks = tile([slides if (i + 1) % 6 else block for i in range(depth)])
    stack = Stack(depth, blocks, Rotary(GLOBAL), last_norm=gemma.NORM)
    embed = Embed(262_144, scale=dim**0.5)
    return Decoder(dim, 32_768, embed, stack, Head(), decoders.INIT)


def _positions(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others."""
    if raw.inside("rope_parameters") is not None:
        return decoders.read_schemes(raw, LOCAL, GLOBAL)
    local = raw.number("rope_local_base_freq", LOCAL, least=1.0)
    return Rotary(local), decoders.read_rotary(raw, GLOBAL)


KEYS = decoders.keys(
    *gemma.SHARED,
    gemma.QUERY_SCALE,
    Key.only("attn_logit_softcapping", None, "no Gemma 3 caps its scores"),
    Key(
        "final_logit_softcapping",
        "head.softcap",
        lambda raw: raw.number("final_logit_softcapping", None),
    ),
    context=131_072,
    kv_heads=4,
    head_dim=256,
    tied=True,
    act="gelu_pytorch_tanh",
    act_names="hidden_activation",
    eps=decoders.eps("rms_norm_eps", 1e-6, f"{ATTN}.qk_norm.eps"),
    rotary=Key("", "decoder.position", lambda raw: _positions(raw)[1]),
)


def read_config(raw: ConfigReader) -> Model:
    """A Gemma 3 config.json as our config."""
    plain = gemma3(640, 6, 1, 2048)
    model = read_keys(raw, decoders.with_blocks(plain, [decoders.stack(plain).block(5)] * 6), KEYS)
    size = raw.integer(
        "sliding_window", decoders.unsaid(raw, "sliding_window", 4096), most=MOST_POSITIONS
    )
    every = raw.integer("sliding_window_pattern", 6)
    slides = [(i + 1) % every != 0 for i in range(model.decoder.depth)]
    blocks = decoders.with_masks(model, decoders.read_windows(raw, size, slides))
    return decoders.with_blocks(model, decoders.with_local(model, blocks, _positions(raw)[0]))


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Gemma 3 config.json, as far as that can say it."""
    decoders.even_heads(model, "gemma3")
    local = decoders.local_scheme(model) or Rotary(LOCAL)
    return {
        **decoders.write(model, KEYS),
        "rope_local_base_freq": local.theta,
        "sliding_window": decoders.window_size(model) or 4096,
        "layer_types": decoders.write_windows(model),
    }


GEMMA3 = Recipe(
    name="gemma3",
    paper="Gemma Team 2025, Gemma 3 Technical Report (arXiv 2503.19786)",
    sizes={"270m": gemma3(640, 18, 1, 2048), "1b": gemma3(1152, 26, 1, 6912)},
    architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
    model_type="gemma3_text",
    tokenizer="google/gemma-3-270m",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {
            **gemma.LAYERS2,
            **decoders.QK_NORMS,
        }
    ),
)

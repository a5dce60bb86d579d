"""Mamba-2: no attention and no feed-forward, a state space model in each block."""

from __future__ import annotations

from typing import Any

from ..core.config import Block, Decoder, Embed, Head, Model, NoPosition, RMSNorm, Stack
from ..core.errors import need
from . import decoders_old as decoders
from .keys_old import MOST_BLOCKS, MOST_HEADS, MOST_TOKENS, Key, read_keys, write_keys
from .mixers import Mamba2
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe

MIXER = decoders.ATTN
CONTEXT = 1 << 20  # no file tells one: a state reads any length


def mamba2(dim: int, depth: int) -> Decoder:
    """The shape of Mamba-2: heads of 64 over twice the width, 50,288 tokens, a tied head."""
    mixer: Any = Mamba2(2 * dim // 64)
    block = Block(mixer, None, RMSNorm(1e-5))
    stack = Stack(depth, (block,), NoPosition(), last_norm=RMSNorm(1e-5))
    return Decoder(dim, CONTEXT, Embed(50_288), stack, Head(), decoders.INIT)


KEYS = (
    Key.integer("hidden_size", "dim"),
    Key.integer("num_hidden_layers", "decoder.depth", 64, most=MOST_BLOCKS),
    Key.integer("vocab_size", "embed.vocab", 32_768, most=MOST_TOKENS),
    Key.integer("num_heads", f"{MIXER}.state_heads", 128, most=MOST_HEADS),
    Key.integer("head_dim", f"{MIXER}.head_dim", 64, most=MOST_HEADS),
    Key.integer("state_size", f"{MIXER}.state", 128, most=MOST_HEADS),
    Key.integer("n_groups", f"{MIXER}.groups", 8, most=MOST_HEADS),
    Key.integer("conv_kernel", f"{MIXER}.kernel", 4, most=64),
    Key.flag("use_bias", f"{MIXER}.bias", False),
    Key.flag("use_conv_bias", f"{MIXER}.conv_bias", True),
    Key.flag("tie_word_embeddings", "head.tied", False),
    Key.std("initializer_range"),
    Key.only("hidden_act", "silu", "the convolution and the gate here are silu"),
    decoders.eps("layer_norm_epsilon", 1e-5, f"{MIXER}.eps"),
)


def read_config(raw: ConfigReader) -> Model:
    """A Mamba-2 config.json as our config."""
    model = read_keys(raw, mamba2(768, 1), KEYS)
    free = [[0.0, end] for end in (float("inf"), {"__float__": "Infinity"})]
    raw.must(
        raw.value("time_step_limit", free[0]) in free,
        "time_step_limit",
        "[0.0, Infinity]",
    )
    expand = raw.integer("expand", 2, most=64)
    mixer = decoders.first_block(model).attention
    assert isinstance(mixer, Mamba2)
    raw.must(
        expand * model.dim == mixer.inner,
        "expand",
        f"num_heads times head_dim ({mixer.inner}) over hidden_size ({model.dim})",
    )
    return model


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Mamba-2 config.json, as far as that can say it."""
    mixer = decoders.first_block(model).attention
    need(isinstance(mixer, Mamba2), "The mamba2 layout holds only blocks of Mamba2.")
    expand = getattr(mixer, "inner", 0) // model.dim
    return {**write_keys(model, KEYS), "expand": expand}


_LAYERS = {
    "backbone.layers.{i}.norm": "decoder.blocks.{i}.attn_norm",
    "backbone.layers.{i}.mixer.in_proj": "decoder.blocks.{i}.attn.in_proj",
    "backbone.layers.{i}.mixer.conv1d": "decoder.blocks.{i}.attn.conv",
    "backbone.layers.{i}.mixer.norm": "decoder.blocks.{i}.attn.norm",
    "backbone.layers.{i}.mixer.out_proj": "decoder.blocks.{i}.attn.out_proj",
    "backbone.norm_f": "decoder.last_norm",
    "lm_head": "head.proj",
}
MAMBA2 = Recipe(
    name="mamba2",
    paper="Dao & Gu 2024, Transformers are SSMs (arXiv 2405.21060)",
    sizes={
        "130m": mamba2(768, 24),
        "370m": mamba2(1024, 48),
        "780m": mamba2(1536, 48),
        "1.3b": mamba2(2048, 48),
        "2.7b": mamba2(2560, 64),
    },
    architectures=("Mamba2ForCausalLM", "Mamba2Model"),
    model_type="mamba2",
    tokenizer="EleutherAI/gpt-neox-20b",
    read_config=read_config,
    write_config=write_config,
    weights=Table(
        (
            NameRule("backbone.embeddings.weight", "embed.token.weight"),
            *rules(_LAYERS),
            *(
                NameRule(f"backbone.layers.{{i}}.mixer.{name}", f"decoder.blocks.{{i}}.attn.{name}")
                for name in ("A_log", "D", "dt_bias")
            ),
        ),
        copies=(("lm_head.weight", "backbone.embeddings.weight"),),
        prefix="backbone.",
    ),
)

"""Mamba-2: no attention and no feed-forward, a state space model in each block."""

from __future__ import annotations

from typing import Any

from ..core.config import Block, Decoder, Head, Model, NoPosition, RMSNorm
from ..core.errors import need
from .decoders import decoder, first_block, table
from .keys import Section, Words, keys, only
from .mixers import Mamba2
from .recipe import ConfigReader, Recipe, Settings

CONTEXT = 1 << 20  # no file tells one: a state reads any length


def mamba2(dim: int, depth: int) -> Decoder:
    """The shape of Mamba-2: heads of 64 over twice the width, 50,288 tokens, a tied head."""
    mixer: Any = Mamba2(2 * dim // 64)
    block = Block(mixer, None, RMSNorm(1e-5))
    return decoder(dim, depth, CONTEXT, 50_288, block, NoPosition(), Head())


def _check(raw: ConfigReader, model: Decoder) -> Decoder:
    """The same model, where the steps have no limit and the widths fit."""
    free = [[0.0, end] for end in (float("inf"), {"__float__": "Infinity"})]
    limit = raw.value("time_step_limit", free[0])
    raw.must(limit in free, "time_step_limit", "[0.0, Infinity]")
    expand, inner = (
        raw.integer("expand", 2, most=64),
        getattr(first_block(model).attention, "inner", 0),
    )
    raw.must(
        expand * model.dim == inner,
        "expand",
        f"num_heads times head_dim ({inner}) over hidden_size ({model.dim})",
    )
    return model


def _write_expand(model: Model) -> Settings:
    mixer: Any = first_block(model).attention
    need(isinstance(mixer, Mamba2), "The mamba2 layout holds only blocks of Mamba2.")
    return {"expand": mixer.inner // model.dim}


WORDS = Words(
    mamba2(768, 1),
    (
        *keys(
            "hidden_size",
            num_hidden_layers=64,
            vocab_size=32_768,
            num_heads=(128, "attention.state_heads"),
            head_dim=64,
            state_size=(128, "attention.state"),
            n_groups=(8, "attention.groups"),
            conv_kernel=(4, "attention.kernel"),
            use_bias=(False, "attention.bias"),
            use_conv_bias=(True, "attention.conv_bias"),
            tie_word_embeddings=False,
            initializer_range=0.02,
            layer_norm_epsilon=(1e-5, "norm.eps last_norm.eps attention.eps"),
        ),
        only("hidden_act", "silu", "the convolution and the gate here are silu"),
    ),
    (Section(_check, _write_expand),),
)

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
    tokenizer="EleutherAI/gpt-neox-20b",
    words=WORDS,
    family="Mamba2",
    weights=table(
        {
            "attn_norm": "norm",
            "attn.in_proj": "mixer.in_proj",
            "attn.conv": "mixer.conv1d",
            "attn.norm": "mixer.norm",
            "attn.out_proj": "mixer.out_proj",
        },
        tables={f"attn.{name}": f"mixer.{name}" for name in ("A_log", "D", "dt_bias")},
        layer="backbone.layers.{i}",
        token="backbone.embeddings",
        last_norm="backbone.norm_f",
        prefix="backbone.",
        ignore=(),
    ),
)

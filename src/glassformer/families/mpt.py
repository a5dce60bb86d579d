"""MPT: ALiBi in place of positions, no bias anywhere, the exact GELU."""

from __future__ import annotations

from typing import Any

from ..core.config import (
    MLP,
    Alibi,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    LayerNorm,
    Model,
    Stack,
)
from . import decoders_old as decoders
from . import gpt2
from .decoders_old import ATTN
from .keys_old import Key, read_keys, write_keys
from .recipe import ConfigReader, Recipe


def mpt(dim: int, depth: int, heads: int, context: int) -> Decoder:
    """The shape of MPT: 50,432 tokens."""
    norm = LayerNorm(bias=False)
    block = Block(Attention(heads), MLP(4 * dim, "gelu"), norm)
    stack = Stack(depth, (block,), Alibi(), last_norm=norm)
    return Decoder(dim, context, Embed(50_432), stack, Head(), decoders.INIT)


KEYS = gpt2.keys(
    Key.only("no_bias", True, "no layer of an MPT has a bias"),
    Key.only("expansion_ratio", 4, "the feed-forward of an MPT is four times as wide"),
    Key.only("logit_scale", None, "logits of an MPT are not scaled"),
    Key.only("embedding_fraction", 1.0, "embeddings learn as fast as all else"),
    Key.only("norm_type", "low_precision_layernorm", "the norms of an MPT are LayerNorms"),
    dim="d_model",
    depth="n_layers",
    heads="n_heads",
    hidden="",
    positions="max_seq_len",
    context=2048,
    table=False,
    act="",
    dropouts="resid_pdrop emb_pdrop",
)
ATTENTION = (
    # "learned_pos_emb" beside it says nothing: ALiBi takes its place
    Key.only("alibi", True, "the order of an MPT's tokens is told by ALiBi"),
    Key.only("alibi_bias_max", 8, "the slopes of ALiBi here go down to 2 ** -8"),
    Key.only("attn_type", "multihead_attention", "each head has keys and values"),
    Key.only("attn_pdrop", 0, "dropout here is one number for the whole stack"),
    Key.only("clip_qkv", None, "queries, keys and values here are not clipped"),
    Key.only("prefix_lm", False, "a decoder here sees what came before"),
    Key.only("qk_ln", False, "its queries and keys are not normed"),
    Key.only("attn_uses_sequence_id", False, "documents here are kept apart by their positions"),
    Key("softmax_scale", f"{ATTN}.scale", lambda raw: raw.number("softmax_scale", None)),
)


def read_config(raw: ConfigReader) -> Model:
    """An MPT config.json as our config."""
    attention = raw.inside("attn_config") or ConfigReader({}, raw.source)
    return read_keys(attention, read_keys(raw, mpt(4096, 32, 32, 2048), KEYS), ATTENTION)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as an MPT config.json, as far as that can say it."""
    gpt2.fixed_act(model, "gelu", "mpt")
    return {**write_keys(model, KEYS), "attn_config": write_keys(model, ATTENTION)}


BLOCKS = "transformer.blocks.{i}"
MPT = Recipe(
    name="mpt",
    paper="MosaicML 2023, Introducing MPT-7B: A New Standard for Open-Source, Commercially Usable "
    "LLMs",
    sizes={"7b": mpt(4096, 32, 32, 2048), "30b": mpt(7168, 48, 64, 8192)},
    architectures=("MptForCausalLM", "MptModel"),
    model_type="mpt",
    tokenizer="mosaicml/mpt-7b",
    read_config=read_config,
    write_config=write_config,
    weights=gpt2.table(
        {
            "attn_norm": "norm_1",
            "ffn_norm": "norm_2",
            "attn.out": "attn.out_proj",
            "ffn.up": "ffn.up_proj",
            "ffn.down": "ffn.down_proj",
        },
        *gpt2.fused("attn.Wqkv", layer=BLOCKS),
        layer=BLOCKS,
        last_norm="norm_f",
    ),
)

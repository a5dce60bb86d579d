"""BLOOM: ALiBi in place of positions, a norm over the embeddings, biases everywhere."""

from __future__ import annotations

from dataclasses import replace
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
from .decoders_old import BLOCK
from .keys_old import Key, read_keys, write_keys
from .names import Table
from .recipe import ConfigReader, Recipe


def bloom(dim: int, depth: int, heads: int) -> Decoder:
    """The shape of BLOOM: 250,880 tokens, learned from texts of 2,048."""
    norm = LayerNorm()
    block = Block(Attention(heads, bias=True), MLP(4 * dim, bias=True), norm)
    stack = Stack(depth, (block,), Alibi(), first_norm=norm, last_norm=norm)
    return Decoder(dim, 2048, Embed(250_880), stack, Head(), decoders.INIT)


KEYS = gpt2.keys(
    Key.only(
        "apply_residual_connection_post_layernorm", False, "the stream here passes the norms by"
    ),
    dim="hidden_size",
    hidden="",
    positions="seq_length",
    context=2048,
    table=False,
    act="",
    dropouts="hidden_dropout attention_dropout",
    eps_places=f"{BLOCK}.norm.eps decoder.first_norm.eps decoder.last_norm.eps",
)


def read_config(raw: ConfigReader) -> Model:
    """A BLOOM config.json as our config; the first files call the width ``n_embed``."""
    if (width := raw.value("n_embed", None)) is not None:
        raw = replace(raw, table={**raw.table, "hidden_size": width})
    return read_keys(raw, bloom(1024, 24, 16), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a BLOOM config.json, as far as that can say it."""
    gpt2.fixed_act(model, "gelu_tanh", "bloom")
    return write_keys(model, KEYS)


def weights(model: Model) -> Table:
    """The table of the model's weights: each head's queries, keys and values lie side by side."""
    return gpt2.table(
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "attn.out": "self_attention.dense",
            "ffn.up": "mlp.dense_h_to_4h",
            "ffn.down": "mlp.dense_4h_to_h",
        },
        *gpt2.fused(
            "self_attention.query_key_value",
            axes="(h 3 d) c -> (3 h d) c",
            heads=decoders.first_block(model).attention.heads,
        ),
        token="word_embeddings",
        first_norm="word_embeddings_layernorm",
    )


BLOOM = Recipe(
    name="bloom",
    paper="BigScience Workshop 2022, BLOOM: A 176B-Parameter Open-Access Multilingual Language "
    "Model (arXiv 2211.05100)",
    sizes={
        "560m": bloom(1024, 24, 16),
        "1b1": bloom(1536, 24, 16),
        "1b7": bloom(2048, 24, 16),
        "3b": bloom(2560, 30, 32),
        "7b1": bloom(4096, 30, 32),
        "176b": bloom(14_336, 70, 112),
    },
    architectures=("BloomForCausalLM", "BloomModel"),
    model_type="bloom",
    tokenizer="bigscience/bloom-560m",
    read_config=read_config,
    write_config=write_config,
    weights=weights,
)

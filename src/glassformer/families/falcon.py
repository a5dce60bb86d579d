"""Falcon (7B): attention and feed-forward side by side under one norm, one head of keys and
values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    LayerNorm,
    Model,
    Rotary,
    Stack,
)
from ..core.errors import need
from . import decoders, gpt2
from .decoders import ATTN, FFN
from .keys import MOST_HIDDEN, Key, read_keys
from .names import Table
from .recipe import ConfigReader, Recipe


def falcon(dim: int, depth: int, heads: int) -> Decoder:
    """The shape of Falcon: 65,024 tokens, 2,048 positions."""
    block = Block(Attention(heads, 1), MLP(4 * dim, "gelu"), LayerNorm(), place="parallel")
    stack = Stack(depth, (block,), Rotary(), last_norm=LayerNorm())
    return Decoder(dim, 2048, Embed(65_024), stack, Head(), decoders.INIT)


KEYS = decoders.without(
    decoders.keys(
        Key.only("new_decoder_architecture", False, "groups of heads that lie so are not read"),
        Key.only("alibi", False, "Falcon's ALiBi is divided by the root of the head's width"),
        Key.flag("bias", f"{ATTN}.bias {FFN}.bias", False),
        Key(
            "ffn_hidden_size",
            f"{FFN}.hidden",
            lambda raw: raw.integer(
                "ffn_hidden_size", 4 * raw.integer("hidden_size"), most=MOST_HIDDEN
            ),
        ),
        context=2048,
        tied=True,
        act="gelu",
        act_names="activation",
        eps=decoders.eps("layer_norm_epsilon", 1e-5),
        dropouts="hidden_dropout attention_dropout",
    ),
    "head_dim num_key_value_heads intermediate_size",
)


def read_config(raw: ConfigReader) -> Model:
    """A Falcon config.json as our config."""
    model = read_keys(raw, falcon(4544, 32, 71), KEYS)
    block = decoders.first_block(model)
    heads, parallel = block.attention.heads, raw.flag("parallel_attn", True)
    kv_heads = 1 if raw.flag("multi_query", True) else heads
    # transformers sets it to the number of heads where a file does not say
    raw.must(raw.integer("num_kv_heads", heads) in (kv_heads, heads), "num_kv_heads", str(kv_heads))
    raw.must(raw.integer("num_ln_in_parallel_attn", 1) == 1, "num_ln_in_parallel_attn", "1")
    attention = replace(block.attention, kv_heads=kv_heads)
    block = replace(block, attention=attention, place="parallel" if parallel else "pre")
    return decoders.with_blocks(model, [block])


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Falcon config.json, as far as that can say it."""
    block = decoders.first_block(model)
    shared = _shares(model)
    need(
        shared or block.attention.kv_heads in (None, block.attention.heads),
        f"The falcon layout holds 1 or {block.attention.heads} heads of keys and values.",
    )
    return {
        **decoders.write(model, KEYS),
        "multi_query": shared,
        "parallel_attn": block.place == "parallel",
        "new_decoder_architecture": False,
        "alibi": False,
    }


def _shares(model: Model) -> bool:
    attention = decoders.first_block(model).attention
    return attention.kv_heads == 1 and attention.heads > 1


def weights(model: Model) -> Table:
    """The table of the model's weights: where each head has keys of its own, it has all three."""
    axes = "" if _shares(model) else "(h 3 d) c -> (3 h d) c"
    heads = decoders.first_block(model).attention.heads
    return gpt2.table(
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "attn.out": "self_attention.dense",
            "ffn.up": "mlp.dense_h_to_4h",
            "ffn.down": "mlp.dense_4h_to_h",
        },
        *gpt2.fused("self_attention.query_key_value", axes=axes, heads=heads),
        token="word_embeddings",
    )


FALCON = Recipe(
    name="falcon",
    paper="Almazrouei et al. 2023, The Falcon Series of Open Language Models (arXiv 2311.16867)",
    sizes={"7b": falcon(4544, 32, 71)},
    architectures=("FalconForCausalLM", "FalconModel"),
    model_type="falcon",
    tokenizer="tiiuae/falcon-7b",
    read_config=read_config,
    write_config=write_config,
    weights=weights,
)

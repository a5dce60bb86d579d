"""Falcon: attention and feed-forward side by side; 7B has one norm for both and one head of keys and
values, 40B and 180B a norm for each and 8 heads."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import MLP, Decoder, LayerNorm, Model, Place
from ..core.errors import need
from . import gpt2
from .decoder_pages import QKV, blocks_of, decoder, first_block, with_blocks, words
from .keys import Section
from .names import Table
from .recipe import ConfigReader, Settings, page


def _kind(raw: ConfigReader, model: Decoder) -> Decoder:
    """Sets where norms stand, and how many heads of keys and values there are."""
    block = first_block(model)
    heads, parallel = block.attention.heads, raw.flag("parallel_attn", True)
    shared = raw.flag("multi_query", True)
    count = raw.integer("num_kv_heads", heads)
    norms = raw.integer("num_ln_in_parallel_attn", None)
    if raw.flag("new_decoder_architecture", False):
        norms = 2 if norms is None else norms
        raw.must(norms in (1, 2), "num_ln_in_parallel_attn", "1 or 2")
        place: Place = "parallel" if norms == 1 else "parallel_norms"
    else:
        # transformers sets it to the number of heads where a file does not say
        expected = 1 if shared else heads
        raw.must(count in (expected, heads), "num_kv_heads", str(expected))
        raw.must(norms in (1, None), "num_ln_in_parallel_attn", "1")
        place, count = "parallel" if parallel else "pre", expected
    block = replace(block, attention=replace(block.attention, kv_heads=count), place=place)
    return with_blocks(model, [block] * len(blocks_of(model)))


def _write_kind(model: Model) -> Settings:
    block = first_block(model)
    heads = block.attention.heads
    kv_heads = _kv_heads(model)
    new = _groups(model)
    need(
        not new or block.place.startswith("parallel"),
        f"The falcon layout holds 1 or {heads} heads of keys and values where norms stand "
        f'"{block.place}".',
    )
    shared = not new and kv_heads == 1 and heads > 1
    return {
        "multi_query": shared,
        "num_kv_heads": kv_heads,
        "parallel_attn": block.place != "pre",
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": (1 + (block.place == "parallel_norms")) if new else None,
        "alibi": False,
    }


def _kv_heads(model: Model) -> int:
    attention = first_block(model).attention
    return attention.kv_heads or attention.heads


def _groups(model: Model) -> bool:
    """True for the layout of 40B: groups of heads, or two norms side by side."""
    block = first_block(model)
    return block.place == "parallel_norms" or _kv_heads(model) not in (1, block.attention.heads)


def weights(model: Model) -> Table:
    """The table of the model's weights: each key-value head lies behind its queries."""
    two = first_block(model).place == "parallel_norms"
    return gpt2.table(
        gpt2.DENSE,
        {
            "attn_norm": "ln_attn" if two else "input_layernorm",
            "ffn_norm": "ln_mlp" if two else "post_attention_layernorm",
            "attn.out": "self_attention.dense",
        },
        token="word_embeddings",
        fused={QKV: "self_attention.query_key_value"},
        groups=_kv_heads(model),
    )


page(
    "falcon",
    words=words(
        decoder(feedforward=MLP(1), norm=LayerNorm()),
        gpt2.wide("hidden_size", "ffn_hidden_size"),
        Section(_kind, _write_kind),
        without="head_dim num_key_value_heads intermediate_size",
        dropouts="hidden_dropout attention_dropout",
        max_position_embeddings=2048,
        activation="gelu",
        tie_word_embeddings=True,
        layer_norm_epsilon=1e-5,
        bias=(False, "attention.bias feedforward.bias"),
    ),
    weights=weights,
)

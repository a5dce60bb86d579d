"""ModernBERT: an encoder of 8,192 tokens, of whose blocks two in three see a window alone and turn
faster; gated, with norms before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import GatedMLP, LayerNorm
from ..core.config.model import Attention, Block, Encoder
from ..core.config.position import Rotary
from . import decoder_pages
from .decoder_pages import QKV, M, blocks_of, slides, stack, words
from .encoder_pages import encoder, read_heads
from .ends import write_dropout
from .keys import MOST_POSITIONS, Key, Section, key
from .mechanisms import FirstBlock
from .names import Table
from .recipe import ConfigReader, Settings, page

LOCAL, GLOBAL = 10_000.0, 160_000.0  # theta of blocks with a window, and of the others
NORM = LayerNorm(bias=False)
ACT = key("classifier_activation", "gelu", "act")


def read_windows(raw: ConfigReader, model: M) -> M:
    """The model with its windows, and without a norm before the first attention."""
    every = raw.integer("global_attn_every_n_layers", 3)
    early = [i % every != 0 for i in range(stack(model).depth)]
    size = raw.integer("local_attention", 128, most=MOST_POSITIONS) // 2 + 1
    masks = decoder_pages.read_windows(raw, size, early)
    model = decoder_pages.with_layers(model, "attention.mask", masks)
    local = _positions(raw)[0]
    near = None if local == stack(model).position else local
    kinds = (FirstBlock, *[Block] * (len(early) - 1))
    blocks = [
        kind(**vars(block) | {"position": near if slides(block) else None})
        for kind, block in zip(kinds, blocks_of(model), strict=True)
    ]
    return decoder_pages.with_blocks(model, blocks)


def write_windows(model: Encoder) -> Settings:
    """Settings of windows, and of the positions of both kinds of blocks."""
    return {
        "pad_token_id": None,  # a tokenizer's follows, where there is one
        "local_attention": 2 * ((decoder_pages.window_size(model) or 65) - 1),
        "layer_types": decoder_pages.write_windows(model),
        **decoder_pages.write_schemes(model, LOCAL),
    }


def _positions(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others."""
    thetas = (raw.number("local_rope_theta", LOCAL), raw.number("global_rope_theta", GLOBAL))
    local, usual = map(Rotary, thetas)
    return decoder_pages.read_schemes(raw, *thetas) or (local, usual)


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the head that its architecture names."""
    act = ACT.parse(raw)
    layer: Any = {
        "transform": act,
        "transform_bias": raw.flag("classifier_bias", False),
        "norm": stack(model).first_norm,
    }
    dropout = raw.number("classifier_dropout", 0.0, most=0.99)
    model = read_heads(raw, model, act, None, dropout)
    if model.head is not None:
        layer["bias"] = raw.flag("decoder_bias", True)
        return replace(model, head=replace(model.head, **layer))
    if model.token_head is not None:
        return replace(model, token_head=replace(model.token_head, **layer))
    if model.pool is None:
        return model
    layer["mode"] = raw.choice("classifier_pooling", {"cls": "first", "mean": "mean"}, "cls")
    return replace(model, pool=replace(model.pool, **layer))


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has."""
    head: Any = model.head or model.token_head or model.pool
    raw = write_dropout(model)
    if head is None:
        return raw
    mean = getattr(head, "mode", "") == "mean"
    return {
        **raw,
        "classifier_activation": ACT.write(head.transform),
        "classifier_bias": head.transform_bias,
        "classifier_pooling": "mean" if mean else "cls",
        "decoder_bias": getattr(head, "bias", True),
    }


_LAYER = {
    "attn_norm": "attn_norm",
    QKV: "attn.Wqkv",
    "attn.out": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn.gate ffn.up": "mlp.Wi",
    "ffn.down": "mlp.Wo",
}


def table(model: Encoder) -> Table:
    """The names of the weights, queries, keys and values in one; those of the head by its kind."""
    labels = "pool" if model.token_head is None else "token_head"
    head = labels if model.head is None else "head"
    return decoder_pages.table(
        _LAYER,
        token="model.embeddings.tok_embeddings",
        last_norm="model.final_norm",
        outside={
            "encoder.first_norm": "model.embeddings.norm",
            f"{head}.transform": "head.dense",
            f"{head}.norm": "head.norm",
            f"{labels}.proj": "classifier",
        },
        side="encoder",
        head="decoder",
        ignore=(),
    )


page(
    "modernbert",
    words=words(
        encoder(Attention(1), GatedMLP(1), NORM, Rotary(), "pre", last_norm=NORM),
        Key("", "position", lambda raw: _positions(raw)[1]),
        Section(read_ends, write_ends),
        rope=Section(read_windows, write_windows),
        dropouts="mlp_dropout attention_dropout embedding_dropout",
        without="num_key_value_heads head_dim tie_word_embeddings",
        even="modernbert",
        max_position_embeddings=8192,
        hidden_activation="gelu",
        attention_bias=False,
        mlp_bias=False,
        norm_bias=(False, "norm.bias first_norm.bias last_norm.bias"),
        norm_eps=1e-5,
    ),
    weights=table,
)

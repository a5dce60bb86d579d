"""GPT-NeoX, whose shape Pythia has: attention and feed-forward side by side, each with a norm."""

from __future__ import annotations

from typing import Any

from ..core.config import Model, Rotary
from ..core.errors import need
from . import gpt2
from .decoder_pages import (
    GPT2_LAYERS,
    NORMS,
    QKV,
    decoder,
    first_block,
    read_rotary,
    stack,
    turned,
    words,
    write_scaling,
)
from .keys import Key, Section
from .names import Table
from .recipe import ConfigReader, Settings, page


def _position(raw: ConfigReader) -> Rotary:
    """Version 4 of transformers calls the numbers ``rotary_emb_base`` and ``rotary_pct``."""
    base, share = raw.number("rotary_emb_base", 10_000.0), raw.number("rotary_pct", 0.25)
    words = {"rope_theta": base, "partial_rotary_factor": share}
    return read_rotary(ConfigReader({**raw.table, **words}, raw.source), fraction=share)


def _write_position(model: Model) -> Settings:
    position: Any = stack(model).position
    need(isinstance(position, Rotary), "The gpt_neox layout holds only rotary positions.")
    return {
        "rotary_emb_base": position.theta,
        "rotary_pct": position.fraction,
        "rope_scaling": write_scaling(position.scaling),
    }


def weights(model: Model) -> Table:
    """The table of the model's weights: each head's queries, keys and values lie side by side."""
    return gpt2.table(
        NORMS,
        gpt2.DENSE,
        {"attn.out": "attention.dense"},
        layer="gpt_neox.layers.{i}",
        token="embed_in",
        last_norm="final_layer_norm",
        prefix="gpt_neox.",
        head="embed_out",
        fused={QKV: "attention.query_key_value"},
        axes="(h 3 d) c -> (3 h d) c",
        heads=first_block(model).attention.heads,
    )


page(
    "gpt_neox",
    words=words(
        decoder(*GPT2_LAYERS),
        Key(
            "use_parallel_residual",
            "place",
            lambda raw: "parallel_norms" if raw.flag("use_parallel_residual", True) else "pre",
            lambda place: place == "parallel_norms",
        ),
        turned(_position),
        without="head_dim num_key_value_heads",
        dropouts="hidden_dropout attention_dropout",
        rope=Section(encode=_write_position),
        max_position_embeddings=2048,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        attention_bias=True,
    ),
    weights=weights,
)

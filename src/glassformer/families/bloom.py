"""BLOOM: ALiBi in place of positions, a norm over the embeddings, biases everywhere."""

from __future__ import annotations

from ..core.config import Alibi, LayerNorm, Model
from . import gpt2
from .decoder_pages import GPT2_LAYERS, NORMS, QKV, decoder, first_block
from .keys import Key
from .names import Table
from .recipe import ConfigReader, page


def _width(raw: ConfigReader) -> int:
    """The first files call the width ``n_embed``."""
    return int(raw.integer("hidden_size" if raw.value("n_embed", None) is None else "n_embed"))


def weights(model: Model) -> Table:
    """The table of the model's weights: each head's queries, keys and values lie side by side."""
    heads = first_block(model).attention.heads
    return gpt2.table(
        NORMS,
        gpt2.DENSE,
        {"attn.out": "self_attention.dense"},
        fused={QKV: "self_attention.query_key_value"},
        axes="(h 3 d) c -> (3 h d) c",
        heads=heads,
        token="word_embeddings",
        first_norm="word_embeddings_layernorm",
    )


page(
    "bloom",
    words=gpt2.words(
        decoder(*GPT2_LAYERS, Alibi(), first_norm=LayerNorm()),
        Key("hidden_size", "dim", _width),
        Key("", "feedforward.hidden", lambda raw: 4 * _width(raw)),
        gpt2.length("seq_length", 2048),
        gpt2.fixed_act("gelu_tanh", "bloom"),
        without="activation_function",
        dropouts="hidden_dropout attention_dropout",
    ),
    weights=weights,
)

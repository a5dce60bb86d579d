"""GPT-2, and nanoGPT's variant of it: no biases, a vocabulary padded to a round number, the exact
GELU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config import (
    Activation,
    Init,
    Learned,
    Model,
)
from ..core.errors import need
from . import decoder_pages
from .decoder_pages import GPT2_LAYERS, QKV, first_block
from .keys import MOST_HIDDEN, MOST_POSITIONS, Key, Section, fill, key, keys
from .names import Names, Table
from .recipe import ConfigReader, Settings, page


def wide(dim: str = "n_embd", name: str = "") -> Key:
    """The width of the feed-forward: four times the word ``dim``, or that of ``name``."""

    def parse(raw: ConfigReader) -> Any:
        width = 4 * raw.integer(dim)
        return raw.integer(name, width, most=MOST_HIDDEN) if name else width

    return Key(name, "feedforward.hidden", parse)


def length(name: str = "n_positions", context: int = 1024) -> Key:
    """The number of positions, and of rows in their table where there is one."""

    def parse(raw: ConfigReader) -> Any:
        return raw.integer(name, raw.integer("n_ctx", context, most=MOST_POSITIONS))

    return Key(name, "context position.length", parse)


SHARED = (
    *keys(
        "n_embd n_layer n_head vocab_size",
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.02,
    ),
    wide(name="n_inner"),
    length(),
    key("resid_pdrop attn_pdrop embd_pdrop", 0.0, "dropout"),
)
# as decoders', with the words that decoders before Llama share
words = partial(decoder_pages.words, shared=SHARED, rope=Section())


def fixed_act(act: Activation, layout: str) -> Section:
    """No words: refuse another activation than that of a layout which has no word for it."""

    def encode(model: Model) -> Settings:
        fits = getattr(first_block(model).feedforward, "act", None) == act
        need(fits, f'The {layout} layout has no other activation than "{act}".')
        return {}

    return Section(encode=encode)


_BIASES = "attention.bias feedforward.bias norm.bias last_norm.bias"


def _write_bias(model: Model) -> Settings:
    """nanoGPT's word, where there are none."""
    return {} if getattr(first_block(model).attention, "bias", True) else {"bias": False}


SHAPE = decoder_pages.decoder(*GPT2_LAYERS, Learned(64))
WORDS = words(
    replace(SHAPE, init=Init()),
    Key("", _BIASES, lambda raw: raw.flag("bias", True)),
    Section(encode=_write_bias),
    dropouts="resid_pdrop attn_pdrop embd_pdrop",
    dropout=0.1,
)


def layout(model: Model) -> Any:
    """The same model with every bias: what the published files hold."""
    return fill(model, [(_BIASES, True)])


THEIRS = "transformer.h.{i}"
NORMS = {"attn_norm": "ln_1", "ffn_norm": "ln_2"}
MATRICES = {"attn.out": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
# of GPT-NeoX, BLOOM and Falcon
DENSE = {"ffn.up": "mlp.dense_h_to_4h", "ffn.down": "mlp.dense_4h_to_h"}


# the causal mask, kept as if it were a weight
MASKS = (
    "attn.bias",
    "attn.masked_bias",
    "attn.causal_mask",
    "attn.attention.bias",
    "attn.attention.masked_bias",
    "attention.bias",
    "attention.masked_bias",
    "attention.rotary_emb.inv_freq",
)


def table(
    *layers: Names,
    layer: str = THEIRS,
    token: str = "wte",
    first_norm: str = "",
    last_norm: str = "ln_f",
    prefix: str = "transformer.",
    **more: Any,
) -> Table:
    """``decoders.table`` in GPT-2's names."""
    outside = {"decoder.position": f"{prefix}wpe", "decoder.first_norm": f"{prefix}{first_norm}"}
    return decoder_pages.table(
        *layers,
        layer=layer,
        token=f"{prefix}{token}",
        last_norm=f"{prefix}{last_norm}",
        outside=outside,
        prefix=prefix,
        ignore=tuple(f"{layer}.{name}" for name in MASKS),
        **more,
    )


TABLE = table(NORMS, turned={QKV: "attn.c_attn", **MATRICES})

page("gpt2", words=WORDS, weights=TABLE, layout=layout)

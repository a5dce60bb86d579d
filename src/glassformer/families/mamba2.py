"""Mamba-2: no attention and no feed-forward, a state space model in each block."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config import Attention, Decoder, Model, NoPosition
from . import decoder_pages
from .decoder_pages import decoder, first_layer
from .keys import ConfigWords, Key, Section, keys, spelled_out
from .mixers import Mamba2
from .names import under
from .recipe import ConfigReader, Settings, page

MIXER: Any = Mamba2(1)
FREE = [0.0, float("inf")]  # steps as long as a token says


def _unlimited(raw: ConfigReader) -> None:
    free = [FREE, [0.0, {"__float__": "Infinity"}]]
    raw.must(raw.value("time_step_limit", FREE) in free, "time_step_limit", "[0.0, Infinity]")


def expansion(word: str) -> Section:
    """A word for how many times as wide as the model all heads are together; they say it already."""

    def check(raw: ConfigReader, model: Decoder) -> Decoder:
        times = raw.integer(word, 2, most=64)
        inner = first_layer(model, Mamba2(1, times * model.dim)).inner
        raw.must(
            times * model.dim == inner,
            word,
            f"the width of all heads together ({inner}) over hidden_size ({model.dim})",
        )
        return model

    def encode(model: Model) -> Settings:
        return {word: first_layer(model, Mamba2(1, 2 * model.dim)).inner // model.dim}

    return Section(check, encode)


UNLIMITED = Key("", "", _unlimited)
# of attention, where a mixer has heads of another width
HEAD_DIM = Section(
    encode=lambda model: {"head_dim": first_layer(spelled_out(model), Attention(1)).head_dim}
)


LAYERS = {"in_proj": "in_proj", "conv": "conv1d", "norm": "norm", "out_proj": "out_proj"}
TABLES = {name: name for name in ("A_log", "D", "dt_bias")}
LAYER = "backbone.layers.{i}"
# as decoders', in Mamba's names
table = partial(
    decoder_pages.table,
    layer=LAYER,
    token="backbone.embeddings",
    last_norm="backbone.norm_f",
    prefix="backbone.",
    ignore=(),
)

page(
    "mamba2",
    words=ConfigWords(
        # no file says a context: a state reads any length
        replace(decoder(MIXER, None, position=NoPosition()), context=1 << 20),
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
            UNLIMITED,
            expansion("expand"),
        ),
    ),
    weights=table(
        {"attn_norm": "norm"},
        under("mixer", LAYERS),
        tables=under("mixer", TABLES),
    ),
)

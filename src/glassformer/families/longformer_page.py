"""Longformer: a RoBERTa whose tokens see a window, and a few global tokens that see all.

A head for labels of a text reads its first token, which transformers makes global. Questions and choices
are global there from their first token to their last, which no word here says: these heads are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import Embed
from ..core.config.model import Encoder
from ..core.config.position import Learned
from . import led, roberta
from .encoder_pages import LAYER, encoder, trunk
from .ends import LABELS, head_of
from .keys import ConfigWords, Section
from .longformer import LongformerAttention
from .names import Table
from .recipe import ConfigReader, page


def read_windows(raw: ConfigReader, model: Any) -> Any:
    """The model with its windows; labels of a text make its first token global."""
    usual = {"global_tokens": 1} if head_of(raw) == LABELS else {}
    return led.read_windows(replace(raw, table={**usual, **raw.table}), model)


WORDS = ConfigWords(
    encoder(
        LongformerAttention(1, bias=True, mask=led.mask_of(2, 1)),
        position=Learned(64, start=2),
        embed=Embed(64, segments=2),
    ),
    (
        *roberta.KEYS,
        Section(read_windows, led.write_windows),
        Section(encode=roberta.write_positions),
        roberta.with_head("longformer"),
    ),
)
_LAYER = {
    **LAYER,
    "attn.q_global": "attention.self.query_global",
    "attn.k_global": "attention.self.key_global",
    "attn.v_global": "attention.self.value_global",
}


def table(model: Encoder) -> Table:
    """The names of the weights: RoBERTa's, and the layers of global tokens."""
    return roberta.with_ends(model, "longformer", trunk("longformer", _LAYER))


LONGFORMER = page("longformer", words=WORDS, weights=table)

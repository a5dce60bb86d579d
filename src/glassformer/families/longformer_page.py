"""Longformer: a RoBERTa whose tokens see a window, and a few global tokens that see all.

A head for labels of a text reads its first token, which is global; so are all tokens of a question, and of
the choice that follows one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import Embed
from ..core.config.model import Encoder
from ..core.config.position import Learned
from . import led, roberta
from .decoder_pages import layers_of, with_layers
from .encoder_pages import LAYER, encoder, trunk
from .ends import ANSWERS, CHOICE, LABELS, head_of
from .keys import ConfigWords, Section
from .longformer import LongformerAttention
from .names import Table
from .recipe import ConfigReader, Settings, page


def attention_of(model: Encoder) -> Any:
    """The attention of the first block, whose part is that of all."""
    return layers_of(model, "attention")[0]


PARTS: dict[str, Any] = {ANSWERS: "question", CHOICE: "choice"}


def read_windows(raw: ConfigReader, model: Any) -> Any:
    """The model with its windows; which tokens are global is said by the head."""
    usual = {"global_tokens": 1} if head_of(raw) == LABELS else {}
    model = led.read_windows(replace(raw, table={**usual, **raw.table}), model)
    separator = raw.integer("sep_token_id", 2)
    layer = {"part": PARTS.get(head_of(raw)), "separator": separator}
    return with_layers(
        model, "attention", [replace(a, **layer) for a in layers_of(model, "attention")]
    )


def write_windows(model: Encoder) -> Settings:
    """Settings of windows, and the class that says which part is global."""
    attention = attention_of(model)
    raw = {"sep_token_id": attention.separator, **led.write_windows(model)}
    choice = {"architectures": ["LongformerForMultipleChoice"]}
    return raw | (choice if attention.part == "choice" else {})


WORDS = ConfigWords(
    encoder(
        LongformerAttention(1, bias=True, mask=led.mask_of(2, 1)),
        position=Learned(64, start=2),
        embed=Embed(64, segments=2),
    ),
    (
        *roberta.KEYS,
        Section(read_windows, write_windows),
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
    is_choice = attention_of(model).part == "choice"
    return roberta.with_ends(model, "longformer", trunk("longformer", _LAYER), choice=is_choice)


LONGFORMER = page("longformer", words=WORDS, weights=table)

"""Longformer: a RoBERTa whose tokens see a window, and a few global tokens that see all.

A head for labels of a text reads its first token, which is global; so are all tokens of a question, and of
the choice that follows one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import Embed
from ..core.config.position import Learned
from . import led, roberta
from .encoder_pages import LAYER, encoder, trunk
from .ends import ANSWERS, CHOICE, LABELS, head_of
from .keys import ConfigWords, Section
from .longformer import LongformerAttention
from .names import Table
from .recipe import ConfigReader, Settings, page

PARTS: dict[str, Any] = {ANSWERS: "question", CHOICE: "choice"}


def read_windows(raw: ConfigReader, model: Any) -> Any:
    """The model with its windows; which tokens are global is said by the head."""
    head, separator = head_of(raw), raw.integer("sep_token_id", 2)
    usual = {"global_tokens": 1} if head == LABELS else {}
    raw = replace(raw, table={**usual, **raw.table})
    return led.read_windows(raw, model, part=PARTS.get(head), separator=separator)


def write_windows(model: Any) -> Settings:
    """Settings of windows, and the class that says which part is global."""
    attention = model.encoder.pattern[0].attention
    raw = {"sep_token_id": attention.separator, **led.write_windows(model)}
    if attention.part == "choice":
        raw["architectures"] = ["LongformerForMultipleChoice"]
    return raw


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


def table(model: Any) -> Table:
    """The names of the weights: RoBERTa's, and the layers of global tokens."""
    attention = model.encoder.pattern[0].attention
    rules = trunk("longformer", _LAYER)
    return roberta.with_ends(model, "longformer", rules, choice=attention.part == "choice")


LONGFORMER = page("longformer", words=WORDS, weights=table)

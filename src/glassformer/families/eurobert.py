"""EuroBERT: Llama's blocks as an encoder, for words under masks and labels of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import GatedMLP, Head, RMSNorm
from ..core.config.model import Attention, Encoder
from ..core.config.pool import Pool, TokenHead
from ..core.config.position import Rotary
from . import decoder_pages
from .decoder_pages import ATTENTION, GATED, NORMS, words, write_rope_table
from .encoder_pages import encoder
from .ends import LABELS, MASKED, TOKENS, head_of, read_labels
from .keys import Section
from .recipe import ConfigReader, Settings, page

NORM = RMSNorm()


# which vectors of a text become one; late: behind the dense layer
POOLINGS: Any = {"bos": "first", "mean": "mean", "late": "mean"}


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the head that its architecture names."""
    head = head_of(raw)
    if head == MASKED:
        bias, tied = raw.flag("mlp_bias", False), raw.flag("tie_word_embeddings", False)
        return replace(model, head=Head(tied=tied, bias=bias))
    if head == LABELS:
        mode = raw.choice("classifier_pooling", POOLINGS, "late")
        late = raw.value("classifier_pooling", "late") == "late"
        return replace(model, pool=Pool(mode, "gelu", read_labels(raw), late=late))
    return replace(model, token_head=TokenHead(read_labels(raw))) if head == TOKENS else model


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has, and of its positions."""
    pool = model.pool
    # a tokenizer's follows, where there is one
    raw = {"pad_token_id": None, **write_rope_table(model)}
    if pool is not None:
        kind = "late" if pool.late else "mean"
        raw["classifier_pooling"] = "bos" if pool.mode == "first" else kind
    return raw


page(
    "eurobert",
    words=words(
        encoder(Attention(1), GatedMLP(1), NORM, Rotary(), "pre", first_norm=None, last_norm=NORM),
        rope=Section(read_ends, write_ends),
        dropouts="attention_dropout",
        without="tie_word_embeddings",
        max_position_embeddings=8192,
        attention_bias=False,
        mlp_bias=False,
        rms_norm_eps=1e-5,
    ),
    weights=decoder_pages.table(
        ATTENTION,
        GATED,
        NORMS,
        side="encoder",
        outside={f"{head}.proj": "classifier" for head in ("pool", "token_head")}
        | {"pool.transform": "dense"},
        ignore=(),
    ),
)

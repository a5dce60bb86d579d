"""EuroBERT: Llama's blocks as an encoder, for words under masks and labels of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import GatedMLP, Head, RMSNorm
from ..core.config.model import Attention, Encoder
from ..core.config.pool import Pool, TokenHead
from ..core.config.position import Rotary
from ..core.errors import need
from . import decoder_pages
from .decoder_pages import ATTENTION, GATED, NORMS, words, write_rope_table
from .encoder_pages import encoder
from .ends import LABELS, MASKED, TOKENS, head_of, read_labels
from .keys import Section, only
from .recipe import ConfigReader, Settings, page

NORM = RMSNorm()


# whether the dense layer reads a mean, or is read by it
POOLINGS: Any = {"bos": ("first", False), "mean": ("mean", False), "late": ("mean", True)}


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the head that its architecture names."""
    head = head_of(raw)
    if head == MASKED:
        bias, tied = raw.flag("mlp_bias", False), raw.flag("tie_word_embeddings", False)
        return replace(model, head=Head(tied=tied, bias=bias))
    if head == LABELS:
        mode, late = raw.choice("classifier_pooling", POOLINGS, "late")
        return replace(model, pool=Pool(mode, "gelu", read_labels(raw), late=late))
    return replace(model, token_head=TokenHead(read_labels(raw))) if head == TOKENS else model


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has, and of its positions."""
    pool = model.pool
    need(pool is None or pool.labels > 0, "The eurobert layout holds no pool of vectors.")
    mode = (pool.mode, pool.late) if pool else ("mean", True)
    return {
        "pad_token_id": None,  # a tokenizer's follows, where there is one
        "classifier_pooling": next((word for word in POOLINGS if POOLINGS[word] == mode), None),
        **write_rope_table(model),
    }


WORDS = words(
    encoder(Attention(1), GatedMLP(1), NORM, Rotary(), "pre", first_norm=None, last_norm=NORM),
    only(
        pretraining_tp=(1, "matrices lie in one piece here"),
    ),
    rope=Section(read_ends, write_ends),
    dropouts="attention_dropout",
    without="tie_word_embeddings",
    max_position_embeddings=8192,
    attention_bias=False,
    mlp_bias=False,
    rms_norm_eps=1e-5,
)

EUROBERT = page(
    "eurobert",
    words=WORDS,
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

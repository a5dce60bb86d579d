"""ALBERT: BERT with narrow embeddings and one block, which every pass goes through again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.model import Encoder
from . import encoder_pages
from .bert import KEYS as BERT_KEYS
from .bert import TRUNK
from .encoder_pages import embeddings, ends
from .keys import ConfigWords, Section, key, revise
from .mechanisms import LoopedStack
from .names import Table, rules
from .recipe import ConfigReader, page

ENDS = ends("albert.pooler", dropout="classifier_dropout_prob", usual=0.1, pretrained=True)
STACK: Any = LoopedStack(**vars(TRUNK.encoder))


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the ends that its architecture names."""
    apart = model.embed_dim() != model.dim
    raw.must(apart, "embedding_size", "another than hidden_size, for a layer lies between")
    return ENDS.decode(raw, model)  # type: ignore[no-any-return]


POOLER, NEXT, HEAD = "albert.pooler", "sop_classifier.classifier", "predictions"
_LAYER = {
    "attn.q": "attention.query",
    "attn.k": "attention.key",
    "attn.v": "attention.value",
    "attn.out": "attention.dense",
    "attn_norm": "attention.LayerNorm",
    "ffn.up": "ffn",
    "ffn.down": "ffn_output",
    "ffn_norm": "full_layer_layer_norm",
}


def table(model: Encoder) -> Table:
    """The names of the weights; those of labels depend on the ends there are."""
    labels = {"pool.proj": NEXT if model.head else "classifier", "pool.transform": POOLER}
    mapping = {"encoder.project": "albert.encoder.embedding_hidden_mapping_in"}
    names = ("dense", "LayerNorm")
    block = rules(
        _LAYER, "albert.encoder.albert_layer_groups.0.albert_layers.0.", "encoder.blocks.0."
    )
    inside = (*embeddings("albert"), *block, *rules(mapping))
    unread = (POOLER, NEXT)
    return encoder_pages.table(model, "albert", HEAD, inside, labels, unread, transform=names)


page(
    "albert",
    words=ConfigWords(
        replace(TRUNK, encoder=STACK),
        revise(
            BERT_KEYS,
            key("hidden_dropout_prob attention_probs_dropout_prob", 0.0, "dropout"),
            Section(read_ends, ENDS.encode),
            embedding_size=(128, "embed.dim"),
            hidden_act="gelu_new",
        ),
    ),
    weights=table,
)

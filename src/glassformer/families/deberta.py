"""DeBERTa, its versions 2 and 3: BERT's blocks whose scores read content and distance apart.

The first version deals queries, keys and values of each head out of one matrix and keys have no
bias; version 2 groups distances in buckets. The head over words has names of its own in files with
``legacy`` false, which are read and not written.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config import serial
from ..core.config.model import Encoder
from ..core.config.position import Learned
from ..core.errors import need
from . import encoder_pages
from .bert import KEYS as BERT_KEYS
from .decoder_pages import QKV, first_block, stack
from .disentangled import DisentangledAttention, RelativeEmbedding
from .encoder_pages import LAYER, OURS, encoder, moved, read_heads, trunk
from .ends import CHOICE, LABELS, head_of, write_dropout
from .keys import MOST_POSITIONS, ConfigWords, Key, Section, key, revise
from .names import Table, rules
from .recipe import ConfigReader, Recipe, Settings, page

SCORES = {"c2p": "content_to_position", "p2c": "position_to_content"}


def read_scores(raw: ConfigReader) -> tuple[str, ...]:
    """Our names of the scores of distances that a model adds."""
    stated = raw.value("pos_att_type", [])
    kinds = stated.lower().split("|") if isinstance(stated, str) else stated
    kinds = [kind.strip() if isinstance(kind, str) else "" for kind in kinds]
    fits = set(kinds) <= set(SCORES) and 0 < len(kinds) == len(set(kinds))
    raw.must(fits, "pos_att_type", "c2p, p2c or both")
    return tuple(SCORES[kind] for kind in kinds)


def read_position(raw: ConfigReader, norm: Any, first: bool) -> Any:
    """The table of distances, perhaps with this ``norm``; the ``first`` version has neither buckets
    nor a norm."""
    length = raw.integer("max_position_embeddings", 512, MOST_POSITIONS)
    distance, buckets = (
        max(0, int(raw.number(key, -1, least=-1, most=MOST_POSITIONS)))
        for key in ("max_relative_positions", "position_buckets")
    )
    distance = distance or length
    normed = not first and raw.choice("norm_rel_ebd", {"none": False, "layer_norm": True}, "none")
    norm = norm if normed else None
    added = Learned(length) if raw.flag("position_biased_input", True) else None
    if first or not buckets:
        return RelativeEmbedding(distance, None, norm, added)
    return RelativeEmbedding(buckets, distance, norm, added)


def read_layers(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with its scores and its table of distances."""
    scores = read_scores(raw)
    attention: Any = first_block(model).attention
    width, first = attention.width(model.dim), not attention.key_bias
    sizes = {
        "embedding_size": model.dim,
        "pooler_hidden_size": model.dim,
        "attention_head_size": width,
    }
    for word, size in sizes.items():
        raw.only(word, size, "a DeBERTa here has one width, which its heads share")
    attention = replace(
        attention,
        scale=(width * (1 + len(scores))) ** -0.5,
        shared=not first and raw.flag("share_att_key", False),
        **{name: name in scores for name in SCORES.values()},
    )
    position = read_position(raw, stack(model).first_norm, first)
    changes = {"encoder.pattern.attention": attention, "encoder.position": position}
    return serial.change(model, changes)


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the head that its architecture names."""
    dropout = model.encoder.dropout
    if head_of(raw) in (LABELS, CHOICE):
        dropout = raw.number("cls_dropout", dropout, most=0.99)
    tied = {} if raw.flag("legacy", True) else {"tie_word_embeddings": True}
    raw = replace(raw, table={**raw.table, **tied})
    return read_heads(raw, model, POOLED.parse(raw), None, dropout)


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has."""
    raw = write_dropout(model, "cls_dropout")
    if model.pool is not None:
        raw["pooler_hidden_act"] = POOLED.write(model.pool.transform or "gelu")
    return raw


def write_layers(model: Encoder) -> Settings:
    """Settings of scores and of the table of distances."""
    attention: Any = first_block(model).attention
    position: Any = stack(model).position
    fits = isinstance(attention, DisentangledAttention) and isinstance(position, RelativeEmbedding)
    need(fits, "The layouts of DeBERTa hold disentangled attention alone.")
    newer = {
        "position_buckets": position.buckets if position.distance else -1,
        "norm_rel_ebd": "layer_norm" if position.norm else "none",
        "share_att_key": attention.shared,
    }
    return {
        "max_relative_positions": position.distance or position.buckets,
        "position_biased_input": position.added is not None,
        "relative_attention": True,
        "pos_att_type": [kind for kind, name in SCORES.items() if getattr(attention, name)],
        **(newer if attention.key_bias else {}),
    }


POOLED = key("pooler_hidden_act", "gelu", "act")
KEYS = revise(
    BERT_KEYS,
    Key("type_vocab_size", "embed.segments", lambda raw: raw.value("type_vocab_size", 0)),
    without="max_position_embeddings",
    max_position_embeddings=(512, "context"),
    layer_norm_eps=1e-7,
    vocab_size=128_100,
)

_BLOCK = {name: layer for name, layer in LAYER.items() if ".self." not in layer}
_SECOND = {
    "attn.q": "attention.self.query_proj",
    "attn.k": "attention.self.key_proj",
    "attn.v": "attention.self.value_proj",
    "attn.pos_k": "attention.self.pos_key_proj",
    "attn.pos_q": "attention.self.pos_query_proj",
}
_FIRST = {
    "attn.q.bias": "q_bias",
    "attn.v.bias": "v_bias",
    "attn.pos_k.weight": "pos_proj.weight",
    "attn.pos_q.weight": "pos_q_proj.weight",
    "attn.pos_q.bias": "pos_q_proj.bias",
}
_WORDS, _NEW = "cls.predictions", "lm_predictions.lm_head"
_POSITION = "encoder.position"
_DISTANCES = {_POSITION: "rel_embeddings", f"{_POSITION}.norm": "LayerNorm"}
_UNREAD = (
    "mask_predictions.dense",
    "mask_predictions.LayerNorm",
    "mask_predictions.classifier",
    "deberta.embeddings.position_embeddings",
)


def table(model: Encoder) -> Table:
    """The names of the weights; how those of labels are called depends on the head."""
    attention: Any = first_block(model).attention
    layers = {**_BLOCK, **(_SECOND if attention.key_bias else {})}
    trunk_rules = [
        *trunk("deberta", layers, position=f"{_POSITION}.added"),
        *rules(_DISTANCES, "deberta.encoder."),
    ]
    if not attention.key_bias:
        inside = partial(rules, file="deberta.encoder.layer.{i}.attention.self.", place=OURS)
        trunk_rules += inside(_FIRST, suffixes=("",))
        trunk_rules += inside({QKV: "in_proj"}, suffixes=(".weight",), groups=attention.heads)
    pool = {"pool.transform": "pooler.dense", "pool.proj": "classifier"}
    names = [f"{_WORDS}.transform.{name}" for name in ("dense", "LayerNorm")]
    newer = moved(f"{_NEW}.dense", f"{_NEW}.LayerNorm", *names)
    newer += ((f"{_NEW}.bias", f"{_WORDS}.bias"),)
    return encoder_pages.table(model, "deberta", _WORDS, trunk_rules, pool, _UNREAD, newer)


def recipe(name: str, key_bias: bool) -> Recipe:
    """The recipe of a version."""
    attention = DisentangledAttention(1, bias=True, out_bias=True, key_bias=key_bias)
    position: Any = RelativeEmbedding()
    sections = Section(read_layers, write_layers), Section(read_ends, write_ends)
    words = ConfigWords(encoder(attention, position=position), (*KEYS, *sections))
    return page(name, words=words, weights=table)


recipe("deberta", key_bias=False)
recipe("deberta-v2", key_bias=True)

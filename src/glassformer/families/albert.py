"""ALBERT: BERT with narrow embeddings and one block, which every pass goes through again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP
from ..core.config.model import Encoder, Model, embed_dim, stacks
from ..core.config.pool import Pool
from .bert import KEYS as BERT_KEYS
from .bert import PRETRAINING, bert
from .encoders import (
    ANSWERS,
    CHOICE,
    LABELS,
    MASKED,
    TOKENS,
    architectures,
    embeddings,
    head_of,
    read_heads,
    tags,
    with_words,
    write_heads,
)
from .keys import ACTIVATIONS, MOST_HIDDEN, Key, read_keys, write_keys
from .mechanisms import LoopedStack
from .names import Table
from .recipe import ConfigReader, Recipe

DROPOUT = "classifier_dropout_prob"
KEYS = (
    *BERT_KEYS,
    Key.only("num_hidden_groups", 1, "all blocks of an ALBERT here share one group of weights"),
    Key.only("inner_group_num", 1, "a group of an ALBERT here is one block"),
    Key.integer("embedding_size", "embed.dim", 128, most=MOST_HIDDEN),
    Key.activation("hidden_act", "encoder.pattern.feedforward.act", "gelu_new"),
    Key.number(
        "hidden_dropout_prob attention_probs_dropout_prob", "encoder.dropout", 0.0, most=0.99
    ),
)


def albert(dim: int, depth: int, heads: int) -> Encoder:
    """The shape of ALBERT's second version, for words under masks; 512 positions."""
    model = bert(dim, depth, heads)
    stack = LoopedStack(**vars(stacks(model)["encoder"]) | {"dropout": 0.0})
    (block,) = stack.pattern
    block = replace(block, feedforward=MLP(4 * dim, "gelu_tanh", bias=True))
    embed = Embed(30_000, segments=2, dim=128)
    head = Head(bias=True, transform="gelu_tanh", norm=stack.first_norm, width=128)
    stack = replace(stack, pattern=(block,))
    return replace(model, embed=embed, encoder=stack, head=head, pool=None)


def read_config(raw: ConfigReader) -> Model:
    """An ALBERT config.json as our config: the architecture says which ends there are."""
    model = read_keys(raw, replace(albert(128, 1, 2), head=None), KEYS)
    apart = embed_dim(model) != model.dim
    raw.must(apart, "embedding_size", "another than hidden_size, for a layer lies between")
    head, dropout = head_of(raw), raw.number(DROPOUT, 0.1, most=0.99)
    words = Head(
        raw.flag("tie_word_embeddings", True),
        bias=True,
        transform=ACTIVATIONS[raw.value("hidden_act", "gelu_new")],
        norm=stacks(model)["encoder"].first_norm,
        width=embed_dim(model),
    )
    if head == PRETRAINING:
        return replace(model, head=words, pool=Pool("first", "tanh", 2, dropout))
    model = read_heads(raw, model, words, "tanh", dropout)
    bare = not head and raw.flag("add_pooling_layer", True)
    bare = bare and (
        raw.weights is None or any(map(raw.holds, ("pooler.weight", f"{POOLER}.weight")))
    )
    return replace(model, pool=Pool("first", "tanh")) if bare else model


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as an ALBERT config.json, as far as that can say it."""
    raw = {**write_heads(model, "Albert", DROPOUT), **write_keys(model, KEYS)}
    if model.head is not None and model.pool is not None:
        raw |= {"architectures": [f"AlbertFor{PRETRAINING}"], DROPOUT: model.pool.dropout}
    return raw


POOLER, NEXT, WORDS = "albert.pooler", "sop_classifier.classifier", "predictions"
_BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0"
_LAYER = {
    "attention.query": "attn.q",
    "attention.key": "attn.k",
    "attention.value": "attn.v",
    "attention.dense": "attn.out",
    "attention.LayerNorm": "attn_norm",
    "ffn": "ffn.up",
    "ffn_output": "ffn.down",
    "full_layer_layer_norm": "ffn_norm",
}


def table(model: Encoder) -> Table:
    """The names of the weights; those of labels depend on the ends there are."""
    labels = {NEXT if model.head else "classifier": "pool.proj", POOLER: "pool.transform"}
    if model.token_head is not None:
        labels = {tags(model.token_head): "token_head.proj"}
    block = {f"{_BLOCK}.{name}": f"encoder.blocks.0.{place}" for name, place in _LAYER.items()}
    transform = {f"{WORDS}.dense": "head.transform", f"{WORDS}.LayerNorm": "head.norm"}
    mapping = {"albert.encoder.embedding_hidden_mapping_in": "encoder.project"}
    layers = {**block, **mapping, **transform, **labels}
    unread = (POOLER, NEXT, *transform)
    return with_words(model, "albert", embeddings("albert"), layers, WORDS, unread)


ALBERT = Recipe(
    name="albert",
    paper="Lan et al. 2019, ALBERT: A Lite BERT for Self-supervised Learning of Language "
    "Representations (arXiv 1909.11942)",
    sizes={
        "base": albert(768, 12, 12),
        "large": albert(1024, 24, 16),
        "xlarge": albert(2048, 24, 16),
        "xxlarge": albert(4096, 12, 64),
    },
    architectures=architectures("Albert", PRETRAINING, MASKED, LABELS, CHOICE, TOKENS, ANSWERS),
    model_type="albert",
    tokenizer="albert/albert-base-v2 (SentencePiece)",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=("AlbertModel",),
)

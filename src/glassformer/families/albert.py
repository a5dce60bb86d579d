"""ALBERT: BERT with narrow embeddings and one block, which every pass goes through again."""

from __future__ import annotations

from dataclasses import replace

from ..core.config.embed_head import Embed
from ..core.config.feedforward import MLP
from ..core.config.model import Encoder, embed_dim, stacks
from ..core.config.pool import Pool
from . import encoder_pages
from .bert import KEYS as BERT_KEYS
from .bert import PRETRAINING, bert
from .encoder_pages import (
    HEADS,
    embeddings,
    head_of,
    label_layers,
    read_heads,
    words_head,
    write_heads,
)
from .keys import ConfigWords, Section, key, only, revise
from .mechanisms import LoopedStack
from .names import Table
from .recipe import ConfigReader, Recipe, Settings

DROPOUT = "classifier_dropout_prob"


def albert(dim: int, depth: int, heads: int) -> Encoder:
    """The shape of ALBERT's second version, for words under masks; 512 positions."""
    model = bert(dim, depth, heads)
    stack = LoopedStack(**vars(stacks(model)["encoder"]) | {"dropout": 0.0})
    (block,) = stack.pattern
    block = replace(block, feedforward=MLP(4 * dim, "gelu_tanh", bias=True))
    embed = Embed(30_000, segments=2, dim=128)
    stack = replace(stack, pattern=(block,))
    model = replace(model, embed=embed, encoder=stack, head=None, pool=None)
    return replace(model, head=words_head(model))


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the ends that its architecture names."""
    apart = embed_dim(model) != model.dim
    raw.must(apart, "embedding_size", "another than hidden_size, for a layer lies between")
    head, dropout = head_of(raw), raw.number(DROPOUT, 0.1, most=0.99)
    if head == PRETRAINING:
        words = replace(words_head(model), tied=raw.flag("tie_word_embeddings", True))
        return replace(model, head=words, pool=Pool("first", "tanh", 2, dropout))
    model = read_heads(raw, model, "tanh", dropout=dropout)
    bare = not head and raw.flag("add_pooling_layer", True)
    bare = bare and (
        raw.weights is None or any(map(raw.holds, ("pooler.weight", f"{POOLER}.weight")))
    )
    return replace(model, pool=Pool("first", "tanh")) if bare else model


def write_ends(model: Encoder) -> Settings:
    """Settings of the ends that a model has."""
    if model.head is not None and model.pool is not None:
        tied = {"tie_word_embeddings": model.head.tied}
        return {"architectures": [f"AlbertFor{PRETRAINING}"], DROPOUT: model.pool.dropout} | tied
    return write_heads(model, "Albert", DROPOUT)


WORDS = ConfigWords(
    replace(albert(128, 1, 2), head=None),
    revise(
        BERT_KEYS,
        only("num_hidden_groups", 1, "all blocks of an ALBERT here share one group of weights"),
        only("inner_group_num", 1, "a group of an ALBERT here is one block"),
        key("hidden_dropout_prob attention_probs_dropout_prob", 0.0, "dropout"),
        embedding_size=(128, "embed.dim"),
        hidden_act="gelu_new",
    ),
    [Section(read_ends, write_ends)],
)


POOLER, NEXT, HEAD = "albert.pooler", "sop_classifier.classifier", "predictions"
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
    block = {f"{_BLOCK}.{name}": f"encoder.blocks.0.{place}" for name, place in _LAYER.items()}
    mapping = {"albert.encoder.embedding_hidden_mapping_in": "encoder.project"}
    names, unread = (f"{HEAD}.dense", f"{HEAD}.LayerNorm"), (POOLER, NEXT)
    layers = {**block, **mapping, **label_layers(model, labels)}
    return encoder_pages.table(model, "albert", HEAD, names, embeddings("albert"), layers, unread)


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
    family="Albert",
    heads=(PRETRAINING, *HEADS),
    tokenizer="albert/albert-base-v2 (SentencePiece)",
    words=WORDS,
    weights=table,
)

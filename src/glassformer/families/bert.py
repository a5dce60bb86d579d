"""BERT and the sentence encoders made of it: two-way attention, norms after, learned positions,
segments.

What the model says depends on its ends: words under masks (``head``), next sentence or labels
(``pool``), a label for each token or where an answer lies (``token_head``).
"""

from __future__ import annotations

from dataclasses import replace

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Stack
from ..core.config.norm import LayerNorm
from ..core.config.pool import Pool
from ..core.config.position import Learned
from . import encoder_pages
from .encoder_pages import (
    CHOICE,
    HEADS,
    LABELS,
    head_of,
    label_layers,
    moved,
    read_heads,
    trunk,
    words_head,
    write_heads,
)
from .keys import ConfigWords, Section, key, keys, only
from .names import Table
from .recipe import MISSING, ConfigReader, Recipe, Settings

CASED, UNCASED = 28_996, 30_522  # tokens
PRETRAINING, NEXT_SENTENCE = "PreTraining", "NextSentencePrediction"


def bert(dim: int, depth: int, heads: int, vocab: int = UNCASED) -> Encoder:
    """The shape of BERT as pretrained, for words under masks and next sentences; 512 positions."""
    norm = LayerNorm(1e-12)
    block = Block(Attention(heads, bias=True), MLP(4 * dim, "gelu", bias=True), norm, "post")
    stack = Stack(depth, (block,), Learned(512), causal=False, first_norm=norm, dropout=0.1)
    head = Head(bias=True, transform="gelu", norm=norm)
    init = Init(0.02, 0.02, "plain")
    return Encoder(
        dim, 512, Embed(vocab, segments=2), stack, head, init, Pool("first", "tanh", labels=2)
    )


def sentences(depth: int) -> Encoder:
    """The shape of the MiniLM sentence encoders: the mean of at most 256 tokens, scaled to length
    1."""
    return replace(bert(384, depth, 12), context=256, head=None, pool=Pool("mean", normalize=True))


def read_ends(raw: ConfigReader, trunk: Encoder) -> Encoder:
    """The model with the ends that its architecture names, or the weights beside it."""
    head = head_of(raw)
    model = read_heads(raw, trunk, "tanh")
    if head == PRETRAINING or (not head and raw.holds("cls.predictions.bias")):
        tied = raw.flag("tie_word_embeddings", True)
        model = replace(model, head=replace(words_head(trunk), tied=tied))
    return model if head in (LABELS, CHOICE) else replace(model, pool=read_pool(raw, head))


SHARED = (
    only("is_decoder", False, "a BERT here sees both sides of every token"),
    only("add_cross_attention", False, "an encoder alone has nothing to look across at"),
    *keys(
        "hidden_size num_hidden_layers num_attention_heads intermediate_size",
        max_position_embeddings=512,
        type_vocab_size=2,
        vocab_size=MISSING,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        dropout=key("hidden_dropout_prob attention_probs_dropout_prob", 0.1, "dropout"),
        initializer_range=0.02,
    ),
)
KEYS = (
    only("position_embedding_type", "absolute", "positions of a BERT here are a table"),
    *SHARED,
)


def read_pool(raw: ConfigReader, head: str) -> Pool | None:
    """Pool of the first token's vector, None where the model has none."""
    if head in (PRETRAINING, NEXT_SENTENCE) or raw.holds("cls.seq_relationship.weight"):
        return Pool("first", "tanh", labels=2)
    return None if head else read_pooler(raw, "bert.")


def read_pooler(raw: ConfigReader, prefix: str) -> Pool | None:
    """The pooler of a bare model, None where its files lack one."""
    names = ("pooler.dense.weight", f"{prefix}pooler.dense.weight")
    held = raw.weights is None or any(raw.holds(name) for name in names)
    return Pool("first", "tanh") if held and raw.flag("add_pooling_layer", True) else None


def write_ends(model: Encoder) -> Settings:
    """Settings of the ends that a model has."""
    raw = write_heads(model, "Bert")
    if model.head is not None and model.pool is not None:
        raw["architectures"] = [f"BertFor{PRETRAINING}"]
    return raw


TRUNK = replace(bert(128, 2, 2), head=None, pool=None)
WORDS = ConfigWords(TRUNK, KEYS, [Section(read_ends, write_ends)])


_POOLER, _NEXT, _WORDS = "bert.pooler.dense", "cls.seq_relationship", "cls.predictions"


def table(model: Encoder) -> Table:
    """The names of the weights; how labels are called depends on the ends there are."""
    labels = "classifier" if model.head is None else _NEXT
    renamed = [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]
    if model.head is None and model.pool is not None and model.pool.labels:
        renamed += moved(_NEXT, labels)
    return encoder_pages.table(
        model,
        "bert",
        _WORDS,
        (f"{_WORDS}.transform.dense", f"{_WORDS}.transform.LayerNorm"),
        trunk("bert"),
        {_POOLER: "pool.transform", **label_layers(model, {labels: "pool.proj"})},
        (_POOLER, _NEXT),
        renamed,
    )


BERT = Recipe(
    name="bert",
    paper="Devlin et al. 2018, BERT (arXiv 1810.04805); Turc et al. 2019 (the small sizes); Wang "
    "et al. 2020, MiniLM",
    sizes={
        "tiny": bert(128, 2, 2),
        "mini": bert(256, 4, 4),
        "small": bert(512, 4, 8),
        "medium": bert(512, 8, 8),
        "base": bert(768, 12, 12),
        "base-cased": bert(768, 12, 12, CASED),
        "large": bert(1024, 24, 16),
        "large-cased": bert(1024, 24, 16, CASED),
        "minilm-l6": sentences(6),
        "minilm-l12": replace(sentences(12), context=128),
    },
    family="Bert",
    heads=(PRETRAINING, *HEADS, NEXT_SENTENCE),
    tokenizer="vocab.txt beside the published weights (WordPiece, cased or not)",
    checkpoint="google-bert/bert-base-uncased",
    words=WORDS,
    weights=table,
)

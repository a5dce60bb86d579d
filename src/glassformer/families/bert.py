"""BERT and the sentence encoders made of it: two-way attention, norms after, learned positions,
segments.

What the model says depends on its ends: words under masks (``head``), next sentence or labels
(``pool``), a label for each token or where an answer lies (``token_head``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Model, Stack, stacks
from ..core.config.norm import LayerNorm
from ..core.config.pool import Pool
from ..core.config.position import Learned
from .encoders import (
    ANSWERS,
    CHOICE,
    LABELS,
    MASKED,
    TOKENS,
    architectures,
    head_of,
    read_heads,
    tags,
    trunk,
    weight_and_bias,
    with_words,
    write_heads,
)
from .keys import (
    ACTIVATIONS,
    MOST_BLOCKS,
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_POSITIONS,
    MOST_TOKENS,
    Key,
    read_keys,
    write_keys,
)
from .names import Table
from .recipe import ConfigReader, Recipe

CASED, UNCASED = 28_996, 30_522  # tokens
PRETRAINING, NEXT_SENTENCE = "PreTraining", "NextSentencePrediction"
BLOCK = "encoder.pattern"


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


def read_config(raw: ConfigReader) -> Model:
    """A BERT config.json as our config: the architecture says which ends there are, and so do the
    weights beside it.

    ``hidden_dropout_prob`` is the stack's one dropout.
    """
    trunk, head = read_trunk(raw), head_of(raw)
    act = ACTIVATIONS[raw.value("hidden_act", "gelu")]
    words = Head(
        raw.flag("tie_word_embeddings", True),
        bias=True,
        transform=act,
        norm=stacks(trunk)["encoder"].first_norm,
    )
    model = read_heads(raw, trunk, words, "tanh")
    if head == PRETRAINING or (not head and raw.holds("cls.predictions.bias")):
        model = replace(model, head=words)
    return model if head in (LABELS, CHOICE) else replace(model, pool=read_pool(raw, head))


TRUNK = (
    Key.only("is_decoder", False, "a BERT here sees both sides of every token"),
    Key.only("add_cross_attention", False, "an encoder alone has nothing to look across at"),
    Key.integer("hidden_size", "dim"),
    Key.integer("num_hidden_layers", "encoder.depth", most=MOST_BLOCKS),
    Key.integer("num_attention_heads", f"{BLOCK}.attention.heads", most=MOST_HEADS),
    Key.integer("intermediate_size", f"{BLOCK}.feedforward.hidden", most=MOST_HIDDEN),
    Key.integer(
        "max_position_embeddings", "context encoder.position.length", 512, most=MOST_POSITIONS
    ),
    Key.integer("type_vocab_size", "embed.segments", 2),
    Key.integer("vocab_size", "embed.vocab", most=MOST_TOKENS),
    Key.activation("hidden_act", f"{BLOCK}.feedforward.act", "gelu"),
    Key.number("layer_norm_eps", f"{BLOCK}.norm.eps encoder.first_norm.eps", 1e-12, most=1.0),
    Key.number(
        "hidden_dropout_prob attention_probs_dropout_prob", "encoder.dropout", 0.1, most=0.99
    ),
    Key.std("initializer_range"),
)
KEYS = (
    Key.only("position_embedding_type", "absolute", "positions of a BERT here are a table"),
    *TRUNK,
)


def read_trunk(raw: ConfigReader) -> Encoder:
    """Config of the layers that BERT and its kin share, without heads."""
    return read_keys(raw, replace(bert(128, 2, 2), head=None, pool=None), KEYS)


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


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as a BERT config.json, as far as that can say it."""
    raw = {**write_heads(model, "Bert"), **write_trunk(model)}
    if model.head is not None and model.pool is not None:
        raw["architectures"] = ["BertForPreTraining"]
    return raw


def write_trunk(model: Encoder) -> dict[str, Any]:
    """Settings that BERT and its kin share."""
    return write_keys(model, KEYS)


_POOLER, _NEXT, _WORDS = "bert.pooler.dense", "cls.seq_relationship", "cls.predictions"
_PARTS = {
    _POOLER: "pool.transform",
    f"{_WORDS}.transform.dense": "head.transform",
    f"{_WORDS}.transform.LayerNorm": "head.norm",
}


def table(model: Encoder) -> Table:
    """The names of the weights; how labels and the head's bias are called depends on the ends there
    are."""
    labels = "classifier" if model.head is None else _NEXT
    label_layer = (
        {labels: "pool.proj"}
        if model.token_head is None
        else {tags(model.token_head): "token_head.proj"}
    )
    older = [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]
    if model.head is None and model.pool is not None and model.pool.labels:
        older += zip(weight_and_bias(_NEXT), weight_and_bias(labels), strict=True)
    layers, unread = {**_PARTS, **label_layer}, (*_PARTS, _NEXT)
    table = with_words(model, "bert", trunk("bert"), layers, _WORDS, unread)
    return replace(table, renamed=tuple(older))


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
    architectures=architectures(
        "Bert", PRETRAINING, MASKED, LABELS, NEXT_SENTENCE, CHOICE, TOKENS, ANSWERS
    ),
    model_type="bert",
    tokenizer="vocab.txt beside the published weights (WordPiece, cased or not)",
    checkpoint="google-bert/bert-base-uncased",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=("BertModel",),
)

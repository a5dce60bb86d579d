"""BERT and the sentence encoders made of it: two-way attention, norms after, learned positions,
segments.

What the model says depends on its ends: words under masks (``head``), next sentence or labels
(``pool``), a label for each token or where an answer lies (``token_head``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Model, Stack, stacks
from ..core.config.norm import LayerNorm
from ..core.config.pool import Pool, TokenHead
from ..core.config.position import Learned
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
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe

CASED, UNCASED = 28_996, 30_522  # tokens
PRETRAINING, MASKED, CLASSIFIER = (
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForSequenceClassification",
)
NEXT_SENTENCE, BARE = "BertForNextSentencePrediction", "BertModel"
TOKENS, ANSWERS = "BertForTokenClassification", "BertForQuestionAnswering"
BLOCK = "encoder.pattern"
POOLED = (PRETRAINING, CLASSIFIER, NEXT_SENTENCE)


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
    trunk = read_trunk(raw)
    kind = raw.architecture(BARE)
    head = None
    if kind in (PRETRAINING, MASKED) or (kind == BARE and raw.holds("cls.predictions.bias")):
        act, norm = (
            ACTIVATIONS[raw.value("hidden_act", "gelu")],
            stacks(trunk)["encoder"].first_norm,
        )
        head = Head(raw.flag("tie_word_embeddings", True), bias=True, transform=act, norm=norm)
    pool, labels = read_pool(raw, kind, trunk.encoder.dropout), None
    if kind in (TOKENS, ANSWERS):
        labels = read_token_head(raw, kind == ANSWERS, trunk.encoder.dropout)
    return replace(trunk, head=head, pool=pool, token_head=labels)


KEYS = (
    Key.only("position_embedding_type", "absolute", "positions of a BERT here are a table"),
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


def read_trunk(raw: ConfigReader) -> Encoder:
    """Config of the layers that BERT and its kin share, without heads."""
    return read_keys(raw, replace(bert(128, 2, 2), head=None, pool=None), KEYS)


def read_labels(raw: ConfigReader) -> int:
    """Number of labels to choose from."""
    named = raw.inside("id2label")
    return int(raw.integer("num_labels", 2) if named is None else len(named.table))


def read_token_head(raw: ConfigReader, span: bool, dropout: float) -> TokenHead:
    """Labels for each token, or where an answer starts and ends."""
    if span:
        raw.must(
            read_labels(raw) == 2,
            "id2label",
            "a table of 2, where an answer starts and where it ends",
        )
        return TokenHead(2, span=True)
    return TokenHead(read_labels(raw), dropout=raw.number("classifier_dropout", dropout, most=0.99))


def read_pool(raw: ConfigReader, kind: str, dropout: float) -> Pool | None:
    """Pool of the first token's vector, None where the model has none."""
    if kind == CLASSIFIER:
        return Pool(
            "first", "tanh", read_labels(raw), raw.number("classifier_dropout", dropout, most=0.99)
        )
    if kind in POOLED or raw.holds("cls.seq_relationship.weight"):
        return Pool("first", "tanh", labels=2)
    has_pooler = (
        raw.weights is None
        or raw.holds("pooler.dense.weight")
        or raw.holds("bert.pooler.dense.weight")
    )
    return (
        Pool("first", "tanh")
        if kind == BARE and has_pooler and raw.flag("add_pooling_layer", True)
        else None
    )


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as a BERT config.json, as far as that can say it."""
    raw, pool = write_trunk(model), model.pool
    if model.token_head is not None:
        return {
            "architectures": [ANSWERS if model.token_head.span else TOKENS],
            **raw,
            **write_labels(model),
        }
    if model.head is not None:
        kind = MASKED if pool is None else PRETRAINING
        return {"architectures": [kind], **raw, "tie_word_embeddings": model.head.tied}
    if pool is None or not pool.labels:
        return {
            "architectures": [BARE],
            **raw,
            **({"add_pooling_layer": False} if pool is None else {}),
        }
    return {"architectures": [CLASSIFIER], **raw, **write_labels(model)}


def write_trunk(model: Encoder) -> dict[str, Any]:
    """Settings that BERT and its kin share."""
    return write_keys(model, KEYS)


def write_labels(model: Encoder) -> dict[str, Any]:
    """Settings of the labels, of the text or of each token, and of the dropout before them."""
    head = model.token_head or model.pool
    assert head is not None
    labels = {str(i): f"LABEL_{i}" for i in range(head.labels)}
    return {"classifier_dropout": head.dropout, "id2label": labels}


_LAYER = {
    "attention.self.query": "attn.q",
    "attention.self.key": "attn.k",
    "attention.self.value": "attn.v",
    "attention.output.dense": "attn.out",
    "attention.output.LayerNorm": "attn_norm",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
    "output.LayerNorm": "ffn_norm",
}
_POOLER, _NEXT, _WORDS = "bert.pooler.dense", "cls.seq_relationship", "cls.predictions"
_PARTS = {
    _POOLER: "pool.transform",
    f"{_WORDS}.transform.dense": "head.transform",
    f"{_WORDS}.transform.LayerNorm": "head.norm",
}


def weight_and_bias(*names: str) -> tuple[str, ...]:
    """The weight and the bias of each."""
    return tuple(f"{name}.{suffix}" for name in names for suffix in ("weight", "bias"))


def tags(head: TokenHead) -> str:
    """Name of the layer that gives tokens their labels."""
    return "qa_outputs" if head.span else "classifier"


def trunk(name: str) -> Iterator[NameRule]:
    """The rules of what BERT and its kin share, all below ``name``."""
    for file_name, param_name in (
        ("word", "embed.token"),
        ("position", "encoder.position"),
        ("token_type", "embed.segment"),
    ):
        yield NameRule(f"{name}.embeddings.{file_name}_embeddings.weight", f"{param_name}.weight")
    layers = {
        f"{name}.encoder.layer.{{i}}.{file_name}": f"encoder.blocks.{{i}}.{param_name}"
        for file_name, param_name in _LAYER.items()
    }
    yield from rules({f"{name}.embeddings.LayerNorm": "encoder.first_norm", **layers})


def table(model: Encoder) -> Table:
    """The names of the weights; how labels and the head's bias are called depends on the ends there
    are."""
    labels = "classifier" if model.head is None else _NEXT
    label_layer = (
        {labels: "pool.proj"}
        if model.token_head is None
        else {tags(model.token_head): "token_head.proj"}
    )
    bias, copy = f"{_WORDS}.bias", f"{_WORDS}.decoder.bias"
    if model.head is not None and not model.head.tied:
        bias, copy = copy, bias
    all_rules = (
        *trunk("bert"),
        *rules({**_PARTS, **label_layer}),
        NameRule(f"{_WORDS}.decoder.weight", "head.proj.weight"),
        NameRule(bias, "head.proj.bias"),
    )
    unused = weight_and_bias(
        _POOLER,
        _NEXT,
        f"{_WORDS}.transform.dense",
        f"{_WORDS}.transform.LayerNorm",
        f"{_WORDS}.decoder",
    )
    # of an untied head, a leftover that transformers writes and never reads
    unused += ("bert.embeddings.position_ids", f"{_WORDS}.bias")
    older = [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]
    if model.head is None and model.pool is not None and model.pool.labels:
        older += zip(weight_and_bias(_NEXT), weight_and_bias(labels), strict=True)
    copies = ((f"{_WORDS}.decoder.weight", "bert.embeddings.word_embeddings.weight"), (copy, bias))
    return Table(
        all_rules,
        unused,
        copies if model.head is not None and model.head.tied else (),
        prefix="bert.",
        renamed=tuple(older),
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
    architectures=(PRETRAINING, MASKED, CLASSIFIER, NEXT_SENTENCE, TOKENS, ANSWERS, BARE),
    model_type="bert",
    tokenizer="vocab.txt beside the published weights (WordPiece, cased or not)",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=(BARE,),
)

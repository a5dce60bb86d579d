"""The heads that published encoders have, and the words of a config.json about their labels. No
torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Head
from ..core.config.feedforward import Activation
from ..core.config.model import Encoder
from ..core.config.pool import Pool, TokenHead
from .names import NameRule, Table, rules
from .recipe import ConfigReader

MASKED, LABELS, CHOICE = "MaskedLM", "SequenceClassification", "MultipleChoice"
TOKENS, ANSWERS = "TokenClassification", "QuestionAnswering"


def architectures(family: str, *heads: str) -> tuple[str, ...]:
    """The names of a family's models: one for each head, and the bare one last."""
    return (*(f"{family}For{head}" for head in heads), f"{family}Model")


def head_of(raw: ConfigReader) -> str:
    """The part of an architecture's name that says which head it has; empty for a bare model."""
    return raw.architecture("").partition("For")[2]


# ---------------------------------------------------------------------------------- config.json, in


def read_labels(raw: ConfigReader) -> int:
    """Number of labels to choose from."""
    named = raw.inside("id2label")
    return int(raw.integer("num_labels", 2) if named is None else len(named.table))


def read_token_head(raw: ConfigReader, head: str, dropout: float) -> TokenHead:
    """Labels for each token, or where an answer starts and ends."""
    labels = read_labels(raw)
    if head == ANSWERS:
        raw.must(labels == 2, "id2label", "a table of 2, where an answer starts and where it ends")
    return TokenHead(labels, dropout=dropout, span=head == ANSWERS)


def read_label_pool(raw: ConfigReader, head: str, act: Activation | None, dropout: float) -> Pool:
    """Labels of a text, or the score of a choice, from the first token's vector."""
    return Pool("first", act, 1 if head == CHOICE else read_labels(raw), dropout)


def classifier_dropout(raw: ConfigReader, model: Encoder) -> float:
    """The dropout before the labels; the stack's where the file says nothing."""
    stack_dropout = model.encoder.dropout
    return float(raw.number("classifier_dropout", stack_dropout, most=0.99))


def read_heads(
    raw: ConfigReader, model: Encoder, words: Head, act: Activation, dropout: float | None = None
) -> Encoder:
    """The model with the head that its architecture names; a bare one ends in its pooler.

    ``words`` is the family's head over the vocabulary, ``act`` the activation before its labels,
    ``dropout`` that before labels; None is what BERT's word says.
    """
    head = head_of(raw)
    dropout = classifier_dropout(raw, model) if dropout is None else dropout
    if head == MASKED:
        return replace(model, head=replace(words, tied=raw.flag("tie_word_embeddings", True)))
    if head in (LABELS, CHOICE):
        return replace(model, pool=read_label_pool(raw, head, act, dropout))
    if head in (TOKENS, ANSWERS):
        dropout = 0.0 if head == ANSWERS else dropout
        return replace(model, token_head=read_token_head(raw, head, dropout))
    return model


# --------------------------------------------------------------------------------- config.json, out


def write_labels(model: Encoder, dropout: str = "classifier_dropout") -> dict[str, Any]:
    """Settings of the labels, of the text or of each token, and of the ``dropout`` before them."""
    head = model.token_head or model.pool
    assert head is not None
    labels = {str(i): f"LABEL_{i}" for i in range(head.labels)}
    return {dropout: head.dropout, "id2label": labels}


def head_name(model: Encoder) -> str:
    """The head that a model has, as architectures are named; empty for a bare one."""
    if model.token_head is not None:
        return ANSWERS if model.token_head.span else TOKENS
    if model.head is not None:
        return MASKED
    return LABELS if model.pool is not None and model.pool.labels else ""


def write_heads(model: Encoder, family: str, dropout: str = "classifier_dropout") -> dict[str, Any]:
    """Settings of the head that a model has, or of a bare model's pooler."""
    head = head_name(model)
    named = {"architectures": [f"{family}For{head}" if head else f"{family}Model"]}
    if head == MASKED and model.head is not None:
        return {**named, "tie_word_embeddings": model.head.tied}
    if head:
        return {**named, **write_labels(model, dropout)}
    return {**named, **({"add_pooling_layer": False} if model.pool is None else {})}


# ------------------------------------------------------------------------------------ weight names


def weight_and_bias(*names: str) -> tuple[str, ...]:
    """The weight and the bias of each."""
    return tuple(f"{name}.{suffix}" for name in names for suffix in ("weight", "bias"))


def tags(head: TokenHead) -> str:
    """Name of the layer that gives tokens their labels."""
    return "qa_outputs" if head.span else "classifier"


LAYER = {
    "attention.self.query": "attn.q",
    "attention.self.key": "attn.k",
    "attention.self.value": "attn.v",
    "attention.output.dense": "attn.out",
    "attention.output.LayerNorm": "attn_norm",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
    "output.LayerNorm": "ffn_norm",
}


def embeddings(name: str, norm: str = "LayerNorm") -> Iterator[NameRule]:
    """The rules of the tables below ``name``, which all encoders of BERT's kind call the same."""
    for file_name, param_name in (
        ("word", "embed.token"),
        ("position", "encoder.position"),
        ("token_type", "embed.segment"),
    ):
        yield NameRule(f"{name}.embeddings.{file_name}_embeddings.weight", f"{param_name}.weight")
    yield from rules({f"{name}.embeddings.{norm}": "encoder.first_norm"})


def trunk(
    name: str, layer: Mapping[str, str] = LAYER, norm: str = "LayerNorm"
) -> Iterator[NameRule]:
    """The rules of what BERT and its kin share, all below ``name``; ``layer`` names those of a
    block, ``norm`` that of the embeddings."""
    yield from embeddings(name, norm)
    yield from rules(
        {
            f"{name}.encoder.layer.{{i}}.{file_name}": f"encoder.blocks.{{i}}.{param_name}"
            for file_name, param_name in layer.items()
        }
    )


def with_words(
    model: Encoder,
    name: str,
    trunk: Iterable[NameRule],
    layers: Mapping[str, str],
    words: str,
    unread: Iterable[str] = (),
    tokens: str = "embeddings.word_embeddings.weight",
    untied: str = "decoder.bias",
) -> Table:
    """The table of a ``trunk`` below ``name`` and the ``layers`` behind it, with a head over the
    vocabulary at ``words``.

    Its bias has two names; ``untied`` is that of a head with a table of its own. Layers of heads
    that the model lacks may be ``unread``.
    """
    tied = model.head is not None and model.head.tied
    weight, bias = weight_and_bias(f"{words}.decoder")
    name_of_bias = f"{words}.bias" if tied or model.head is None else f"{words}.{untied}"
    projection = (NameRule(weight, "head.proj.weight"), NameRule(name_of_bias, "head.proj.bias"))
    leftovers = weight_and_bias(*unread, f"{words}.decoder")
    return Table(
        (*trunk, *rules(layers), *projection),
        (*leftovers, f"{words}.bias", f"{name}.embeddings.position_ids"),
        ((weight, f"{name}.{tokens}"), (bias, name_of_bias)) if tied else (),
        prefix=f"{name}.",
    )

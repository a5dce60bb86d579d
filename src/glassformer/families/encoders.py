"""The heads that published encoders have, and the words of a config.json about their labels. No
torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Head
from ..core.config.feedforward import Activation
from ..core.config.model import Encoder
from ..core.config.pool import Pool, TokenHead
from .names import NameRule, rules
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


def read_heads(raw: ConfigReader, model: Encoder, words: Head, act: Activation) -> Encoder:
    """The model with the head that its architecture names; a bare one ends in its pooler.

    ``words`` is the family's head over the vocabulary, ``act`` the activation before its labels.
    """
    head = head_of(raw)
    if head == MASKED:
        return replace(model, head=replace(words, tied=raw.flag("tie_word_embeddings", True)))
    if head in (LABELS, CHOICE):
        return replace(model, pool=read_label_pool(raw, head, act, classifier_dropout(raw, model)))
    if head in (TOKENS, ANSWERS):
        dropout = 0.0 if head == ANSWERS else classifier_dropout(raw, model)
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


def write_heads(model: Encoder, family: str) -> dict[str, Any]:
    """Settings of the head that a model has, or of a bare model's pooler."""
    head = head_name(model)
    named = {"architectures": [f"{family}For{head}" if head else f"{family}Model"]}
    if head == MASKED and model.head is not None:
        return {**named, "tie_word_embeddings": model.head.tied}
    if head:
        return {**named, **write_labels(model)}
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


def embeddings(name: str) -> Iterator[NameRule]:
    """The rules of the tables below ``name``, which all encoders of BERT's kind call the same."""
    for file_name, param_name in (
        ("word", "embed.token"),
        ("position", "encoder.position"),
        ("token_type", "embed.segment"),
    ):
        yield NameRule(f"{name}.embeddings.{file_name}_embeddings.weight", f"{param_name}.weight")
    yield from rules({f"{name}.embeddings.LayerNorm": "encoder.first_norm"})


def trunk(name: str) -> Iterator[NameRule]:
    """The rules of what BERT and its kin share, all below ``name``."""
    yield from embeddings(name)
    yield from rules(
        {
            f"{name}.encoder.layer.{{i}}.{file_name}": f"encoder.blocks.{{i}}.{param_name}"
            for file_name, param_name in LAYER.items()
        }
    )

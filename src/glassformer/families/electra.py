"""ELECTRA: BERT's blocks that say of each token whether it was replaced; the small ones project
their embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import Encoder, Model, TokenHead, embed_dim
from .bert import bert, read_token_head, read_trunk, tags, trunk, write_labels, write_trunk
from .keys import ACTIVATIONS
from .names import Table, rules
from .recipe import ConfigReader, Recipe

DISCRIMINATOR, BARE = "ElectraForPreTraining", "ElectraModel"
TOKENS, ANSWERS = "ElectraForTokenClassification", "ElectraForQuestionAnswering"


def electra(dim: int, depth: int, heads: int, embed: int | None = None) -> Encoder:
    """The shape of a published discriminator; 512 positions."""
    model = bert(dim, depth, heads)
    return replace(
        model,
        embed=replace(model.embed, dim=embed),
        head=None,
        pool=None,
        token_head=TokenHead(1, "gelu"),
    )


def read_config(raw: ConfigReader) -> Model:
    """An ELECTRA config.json as our config; the architecture says what each token is asked."""
    model = read_trunk(raw)
    width = raw.integer("embedding_size", 128)
    model = replace(model, embed=replace(model.embed, dim=None if width == model.dim else width))
    kind = raw.architecture(BARE)
    if kind == BARE:
        return model
    if kind == DISCRIMINATOR:
        return replace(model, token_head=TokenHead(1, ACTIVATIONS[raw.value("hidden_act", "gelu")]))
    return replace(model, token_head=read_token_head(raw, kind == ANSWERS, model.encoder.dropout))


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as an ELECTRA config.json, as far as that can say it."""
    raw = {**write_trunk(model), "embedding_size": embed_dim(model)}
    head = model.token_head
    if head is None:
        return {"architectures": [BARE], **raw}
    if head.transform is not None:
        return {"architectures": [DISCRIMINATOR], **raw}
    return {"architectures": [ANSWERS if head.span else TOKENS], **raw, **write_labels(model)}


def table(model: Encoder) -> Table:
    """The names of the weights; what labels are called depends on what each token is asked."""
    head, end_layers = model.token_head, {"electra.embeddings_project": "encoder.project"}
    if head is not None and head.transform is not None:
        end_layers["discriminator_predictions.dense"] = "token_head.transform"
        end_layers["discriminator_predictions.dense_prediction"] = "token_head.proj"
    elif head is not None:
        end_layers[tags(head)] = "token_head.proj"
    return Table(
        (*trunk("electra"), *rules(end_layers)),
        ("electra.embeddings.position_ids",),
        prefix="electra.",
    )


ELECTRA = Recipe(
    name="electra",
    paper="Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators (arXiv "
    "2003.10555)",
    sizes={
        "small": electra(256, 12, 4, embed=128),
        "base": electra(768, 12, 12),
        "large": electra(1024, 24, 16),
    },
    architectures=(DISCRIMINATOR, TOKENS, ANSWERS, BARE),
    model_type="electra",
    tokenizer="vocab.txt beside the published weights (WordPiece, uncased)",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=(BARE,),
)

"""ELECTRA: BERT's blocks that say of each token whether it was replaced, and the generators that
replace them; the small ones project their embeddings."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import Encoder, TokenHead, embed_dim
from ..core.config.pool import Pool
from .bert import KEYS, TRUNK
from .encoder_pages import (
    CHOICE,
    HEADS,
    ends,
    head_of,
    moved,
    tags,
    trunk,
)
from .keys import ACTIVATIONS, ConfigWords, Section
from .names import Table, rules
from .recipe import ConfigReader, Recipe, Settings, sizes

DISCRIMINATOR, ENDS = "PreTraining", ends("Electra", act="gelu", words="gelu")
SUMMARY = "sequence_summary.summary"


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with its embeddings' width; the architecture says what each token is asked."""
    width = raw.integer("embedding_size", 128)
    model = replace(model, embed=replace(model.embed, dim=None if width == model.dim else width))
    head = head_of(raw)
    if head == DISCRIMINATOR:
        return replace(model, token_head=TokenHead(1, ACTIVATIONS[raw.value("hidden_act", "gelu")]))
    # words and labels have this activation whatever the blocks have; a choice says its own
    if head == CHOICE:
        return replace(model, pool=read_choice(raw))
    model = ENDS.decode(raw, model)
    return model


def read_choice(raw: ConfigReader) -> Pool:
    """The score of a choice, from the first token's vector."""
    raw.only("summary_type", "first", "a choice is scored by its first token")
    raw.only("summary_use_proj", True, "a choice is scored behind a layer")
    act = raw.choice("summary_activation", ACTIVATIONS, "gelu")
    return Pool("first", act, 1, raw.number("summary_last_dropout", 0.1, most=0.99))


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has, and of its embeddings' width."""
    raw, head = {"embedding_size": embed_dim(model)}, model.token_head
    if head is not None and head.transform is not None:
        return {"architectures": [f"ElectraFor{DISCRIMINATOR}"], **raw}
    return {**ENDS.encode(model), **raw}


WORDS = ConfigWords(TRUNK, KEYS, [Section(read_ends, write_ends)])


def table(model: Encoder) -> Table:
    """The names of the weights; what labels are called depends on what each token is asked."""
    head = model.token_head
    end_layers = {
        "electra.embeddings_project": "encoder.project",
        "generator_predictions.dense": "head.transform",
        "generator_predictions.LayerNorm": "head.norm",
        "generator_lm_head": "head.proj",
    }
    if head is not None and head.transform is not None:
        end_layers["discriminator_predictions.dense"] = "token_head.transform"
        end_layers["discriminator_predictions.dense_prediction"] = "token_head.proj"
    elif head is not None:
        end_layers[tags(head)] = "token_head.proj"
    elif model.pool is not None:
        end_layers |= {"classifier.dense": "pool.transform", "classifier.out_proj": "pool.proj"}
    return Table(
        (*trunk("electra"), *rules(end_layers)),
        ("electra.embeddings.position_ids",),
        (("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
        prefix="electra.",
        renamed=moved(SUMMARY, "classifier", "classifier.dense", "classifier.out_proj")
        if model.pool is not None
        else (),
    )


ELECTRA = Recipe(
    name="electra",
    paper="Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators (arXiv "
    "2003.10555)",
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size architectures \
        embedding_size
        small           256  12 4  1024 ["ElectraForPreTraining"] -
        base            768  12 12 3072 ["ElectraForPreTraining"] 768
        large           1024 24 16 4096 ["ElectraForPreTraining"] 1024
        small-generator 256  12 4  1024 ["ElectraForMaskedLM"]    -
        base-generator  256  12 4  1024 ["ElectraForMaskedLM"]    768
        large-generator 256  24 4  1024 ["ElectraForMaskedLM"]    1024
        """,
        vocab_size=30_522,
    ),
    family="Electra",
    heads=(DISCRIMINATOR, *HEADS),
    tokenizer="vocab.txt beside the published weights (WordPiece, uncased)",
    checkpoint="google/electra-small-discriminator",
    words=WORDS,
    weights=table,
)

"""ELECTRA: BERT's blocks that say of each token whether it was replaced, and the generators that
replace them; the small ones project their embeddings."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import Encoder, TokenHead
from ..core.config.pool import Pool
from .bert import KEYS, TRUNK
from .encoder_pages import ends, moved, trunk
from .ends import CHOICE, PRETRAINING, head_of, label_layers
from .keys import ACTIVATIONS, ConfigWords, Section
from .names import Table, rules
from .recipe import ConfigReader, Settings, page

ENDS = ends(act="gelu", words="gelu")
SUMMARY = "sequence_summary.summary"


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with its embeddings' width; the architecture says what each token is asked."""
    width = raw.integer("embedding_size", 128)
    model = replace(model, embed=replace(model.embed, dim=None if width == model.dim else width))
    head = head_of(raw)
    if head == PRETRAINING:
        return replace(model, token_head=TokenHead(1, ACTIVATIONS[raw.value("hidden_act", "gelu")]))
    # words and labels have this activation whatever the blocks have; a choice says its own
    if head == CHOICE:
        return replace(model, pool=read_choice(raw))
    return ENDS.decode(raw, model)  # type: ignore[no-any-return]


def read_choice(raw: ConfigReader) -> Pool:
    """The score of a choice, from the first token's vector."""
    act = raw.choice("summary_activation", ACTIVATIONS, "gelu")
    return Pool("first", act, 1, raw.number("summary_last_dropout", 0.1, most=0.99))


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has, and of its embeddings' width."""
    raw = {"embedding_size": model.embed_dim(), **ENDS.encode(model)}
    asks = getattr(model.token_head, "transform", None)
    return {**raw, "architectures": ["ElectraForPreTraining"]} if asks else raw


GENERATOR_LAYERS = {
    "encoder.project": "electra.embeddings_project",
    "head.transform": "generator_predictions.dense",
    "head.norm": "generator_predictions.LayerNorm",
    "head.proj": "generator_lm_head",
}
DISCRIMINATOR_LAYERS = {
    "token_head.transform": "discriminator_predictions.dense",
    "token_head.proj": "discriminator_predictions.dense_prediction",
}
LABEL_LAYERS = {"pool.transform": "classifier.dense", "pool.proj": "classifier.out_proj"}


def table(model: Encoder) -> Table:
    """The names of the weights; what labels are called depends on what each token is asked."""
    discriminates = getattr(model.token_head, "transform", None)
    labels = DISCRIMINATOR_LAYERS if discriminates else label_layers(model, LABEL_LAYERS)
    return Table(
        (*trunk("electra"), *rules({**GENERATOR_LAYERS, **labels})),
        ("electra.embeddings.position_ids",),
        (("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
        prefix="electra.",
        renamed=moved(SUMMARY, "classifier", "classifier.dense", "classifier.out_proj")
        if model.pool is not None
        else (),
    )


page("electra", words=ConfigWords(TRUNK, (*KEYS, Section(read_ends, write_ends))), weights=table)

"""BERT and the sentence encoders made of it: two-way attention, norms after, learned positions,
segments.

What the model says depends on its ends: words under masks (``head``), next sentence or labels
(``pool``), a label for each token or where an answer lies (``token_head``).
"""

from __future__ import annotations

from dataclasses import replace

from ..core.config.layers import Embed
from ..core.config.model import Encoder
from ..core.config.pool import Pool
from . import encoder_pages
from .encoder_pages import OLDER_NORMS, encoder, ends, moved, tied_head, trunk
from .ends import CHOICE, LABELS, head_of
from .keys import ConfigWords, Section, key, keys
from .names import Table
from .recipe import MISSING, ConfigReader, page

NEXT_SENTENCE = "NextSentencePrediction"
_POOLER, _NEXT, _WORDS = "bert.pooler.dense", "cls.seq_relationship", "cls.predictions"
ENDS = ends(_POOLER, pretrained=True)


def read_ends(raw: ConfigReader, trunk: Encoder) -> Encoder:
    """The model with the ends that its architecture names, or the weights beside it."""
    head = head_of(raw)
    model: Encoder = ENDS.decode(raw, trunk)
    if not head and raw.holds("cls.predictions.bias"):
        model = replace(model, head=tied_head(raw, trunk))
    predicts = head == NEXT_SENTENCE or raw.holds(f"{_NEXT}.weight")
    if not predicts or head in (LABELS, CHOICE):
        return model
    return replace(model, pool=Pool("first", "tanh", 2))


KEYS = keys(
    "hidden_size num_hidden_layers num_attention_heads intermediate_size",
    max_position_embeddings=512,
    type_vocab_size=2,
    vocab_size=MISSING,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
    dropout=key("hidden_dropout_prob attention_probs_dropout_prob", 0.1, "dropout"),
    initializer_range=0.02,
)


TRUNK = encoder(embed=Embed(64, segments=2))


def table(model: Encoder) -> Table:
    """The names of the weights; how labels are called depends on the ends there are."""
    labels = "classifier" if model.head is None else _NEXT
    renamed = OLDER_NORMS
    if model.head is None and model.labels:
        renamed = (*renamed, *moved(_NEXT, labels))
    return encoder_pages.table(
        model,
        "bert",
        _WORDS,
        trunk("bert"),
        {"pool.transform": _POOLER, "pool.proj": labels},
        (_POOLER, _NEXT),
        renamed,
    )


page("bert", words=ConfigWords(TRUNK, (*KEYS, Section(read_ends, ENDS.encode))), weights=table)

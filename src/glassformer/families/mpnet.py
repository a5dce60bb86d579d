"""MPNet: RoBERTa's blocks and ends, with a bias of distances in every block beside the table of
positions."""

from __future__ import annotations

from functools import partial

from ..core.config.model import Encoder
from . import roberta
from .bert import KEYS as BERT_KEYS
from .encoder_pages import LAYER, encoder, trunk
from .keys import ConfigWords, Key, Section, revise
from .mechanisms import LearnedWithBias
from .names import Table, rules
from .recipe import page

START = 2  # transformers has this row for the first position, whatever the id of padding


_LAYER = {
    **LAYER,
    "attn.q": "attention.attn.q",
    "attn.k": "attention.attn.k",
    "attn.v": "attention.attn.v",
    "attn.out": "attention.attn.o",
    "attn_norm": "attention.LayerNorm",
}


def table(model: Encoder) -> Table:
    """The names of the weights."""
    bias = rules({"encoder.position.relative": "mpnet.encoder.relative_attention_bias"})
    return roberta.with_ends(model, "mpnet", (*trunk("mpnet", _LAYER), *bias))


page(
    "mpnet",
    words=ConfigWords(
        encoder(position=LearnedWithBias(64, 2)),
        revise(
            BERT_KEYS,
            Key(
                "max_position_embeddings",
                "context position.length",
                partial(roberta.read_length, start=START),
                lambda length: length + START,
            ),
            roberta.with_head("mpnet"),
            Section(encode=lambda model: {"pad_token_id": START - 1}),
            without="type_vocab_size",
        ),
    ),
    weights=table,
)

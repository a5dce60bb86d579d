"""MPNet: RoBERTa's blocks and ends, with a bias of distances in every block beside the table of
positions."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core.config.model import Encoder
from . import roberta
from .bert import BLOCK, SHARED
from .encoder_pages import HEADS, LAYER, encoder, trunk
from .keys import ConfigWords, Key, Section, only, revise
from .mechanisms import LearnedWithBias
from .names import NameRule, Table
from .recipe import Recipe, sizes

POSITION: Any = LearnedWithBias(64, 2)
START = 2  # transformers has this row for the first position, whatever the id of padding


WORDS = ConfigWords(
    encoder(BLOCK, POSITION),
    revise(
        SHARED,
        only("relative_attention_num_buckets", 32, "distances here lie in 32 buckets"),
        Key(
            "max_position_embeddings",
            "context position.length",
            partial(roberta.read_length, start=START),
            lambda length: length + START,
        ),
        without="type_vocab_size",
    ),
    [
        roberta.with_head("MPNet", "mpnet"),
        Section(encode=lambda model: {"pad_token_id": START - 1}),
    ],
)


_LAYER = {
    **{f"attention.attn.{name}": f"attn.{name}" for name in "qkv"},
    "attention.attn.o": "attn.out",
    "attention.LayerNorm": "attn_norm",
    **{name: LAYER[name] for name in ("intermediate.dense", "output.dense", "output.LayerNorm")},
}
_BIAS = NameRule("mpnet.encoder.relative_attention_bias.weight", "encoder.position.relative.weight")


def table(model: Encoder) -> Table:
    """The names of the weights."""
    return roberta.with_ends(model, "mpnet", (*trunk("mpnet", _LAYER), _BIAS))


MPNET = Recipe(
    name="mpnet",
    paper="Song et al. 2020, MPNet: Masked and Permuted Pre-training for Language Understanding "
    "(arXiv 2004.09297)",
    sizes=sizes(
        """
        architectures sentence_vectors
        base        ["MPNetForMaskedLM"] -
        all-base-v2 -                    {"normalize":true,"max_seq_length":384}
        """,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=514,
        vocab_size=30_527,
        layer_norm_eps=1e-05,
    ),
    family="MPNet",
    heads=HEADS,
    tokenizer="microsoft/mpnet-base (WordPiece, uncased)",
    checkpoint="sentence-transformers/all-mpnet-base-v2",
    words=WORDS,
    weights=table,
    fixed=("pad_token_id",),
)

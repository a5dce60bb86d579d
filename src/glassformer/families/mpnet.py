"""MPNet: RoBERTa's blocks and ends, with a bias of distances in every block beside the table of
positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config.embed_head import Embed
from ..core.config.model import Encoder, stacks
from ..core.config.pool import Pool
from . import roberta
from .bert import SHARED
from .encoder_pages import HEADS, LAYER, trunk, write_heads
from .keys import ConfigWords, Key, Section, only, revise
from .mechanisms import LearnedWithBias
from .names import NameRule, Table
from .recipe import Recipe

START = 2  # transformers has this row for the first position, whatever the id of padding


def mpnet(dim: int, depth: int, heads: int) -> Encoder:
    """The shape of MPNet as pretrained, for words under masks; 512 positions."""
    model = roberta.roberta(dim, depth, heads)
    position: Any = LearnedWithBias(512, START)
    stack = replace(stacks(model)["encoder"], position=position)
    return replace(model, embed=Embed(30_527), encoder=stack)


WORDS = ConfigWords(
    replace(mpnet(128, 2, 2), head=None),
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
        Section(partial(roberta.read_ends, name="mpnet"), partial(write_heads, family="MPNet")),
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
    sizes={
        "base": mpnet(768, 12, 12),
        "all-base-v2": replace(
            mpnet(768, 12, 12), context=384, head=None, pool=Pool("mean", normalize=True)
        ),
    },
    family="MPNet",
    heads=HEADS,
    tokenizer="microsoft/mpnet-base (WordPiece, uncased)",
    checkpoint="sentence-transformers/all-mpnet-base-v2",
    words=WORDS,
    weights=table,
    fixed=("pad_token_id",),
)

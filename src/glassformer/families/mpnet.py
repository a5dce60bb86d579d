"""MPNet: RoBERTa's blocks and ends, with a bias of distances in every block beside the table of
positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed
from ..core.config.model import Encoder, Model, stacks
from ..core.config.pool import Pool
from . import roberta
from .bert import TRUNK
from .encoders import LAYER, architectures, trunk, write_heads
from .keys import MOST_POSITIONS, Key, read_keys, write_keys
from .mechanisms import LearnedWithBias
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe

START = 2  # transformers has this row for the first position, whatever the id of padding


def mpnet(dim: int, depth: int, heads: int) -> Encoder:
    """The shape of MPNet as pretrained, for words under masks; 512 positions."""
    model = roberta.roberta(dim, depth, heads)
    position: Any = LearnedWithBias(512, START)
    stack = replace(stacks(model)["encoder"], position=position)
    return replace(model, embed=Embed(30_527), encoder=stack)


def _length(raw: ConfigReader) -> int:
    """The number of positions, less the rows of the table that stand before the first."""
    rows = raw.integer("max_position_embeddings", 512, MOST_POSITIONS)
    raw.must(rows > START, "max_position_embeddings", f"more than {START}, where positions begin")
    return int(rows - START)


KEYS = (
    *(key for key in TRUNK if key.names not in ("type_vocab_size", "max_position_embeddings")),
    Key.only("relative_attention_num_buckets", 32, "distances here lie in 32 buckets"),
    Key(
        "max_position_embeddings",
        "context encoder.position.length",
        _length,
        lambda length: length + START,
    ),
)


def read_config(raw: ConfigReader) -> Model:
    """An MPNet config.json as our config: the architecture says which head there is."""
    model = read_keys(raw, replace(mpnet(128, 2, 2), head=None), KEYS)
    return roberta.read_ends(raw, model, "mpnet")


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as an MPNet config.json, as far as that can say it."""
    return {**write_heads(model, "MPNet"), **write_keys(model, KEYS), "pad_token_id": START - 1}


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
    architectures=architectures("MPNet", *roberta.HEADS),
    model_type="mpnet",
    tokenizer="microsoft/mpnet-base (WordPiece, uncased)",
    checkpoint="sentence-transformers/all-mpnet-base-v2",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=("MPNetModel",),
    fixed=("pad_token_id",),
)

"""RoBERTa and its kin in other languages: BERT's blocks whose positions begin at row 2 of their
table.

The row of position 0 is one more than the id of padding. CamemBERT and XLM-RoBERTa have the same
config and the same names, so that a model of which nothing else is known is written as RoBERTa.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..core.config.layers import Embed
from ..core.config.model import Encoder
from ..core.config.position import Learned
from . import encoder_pages
from .bert import KEYS as BERT_KEYS
from .decoder_pages import stack
from .encoder_pages import (
    encoder,
    ends,
    moved,
    trunk,
)
from .keys import MOST_POSITIONS, MOST_TOKENS, ConfigWords, Key, Section, revise
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe, Settings, page

WORDS, LABEL = "lm_head", "classifier"


def read_start(raw: ConfigReader) -> int:
    """The row of position 0, one after that of padding."""
    padding = raw.table.get("pad_token_id", 1)
    fits = type(padding) is int and 0 <= padding < MOST_TOKENS
    raw.must(fits, "pad_token_id", "the id of padding, after which positions begin")
    return int(padding) + 1


def read_length(raw: ConfigReader, start: int | None = None) -> int:
    """The number of positions, less the rows of the table that stand before the first."""
    start = read_start(raw) if start is None else start
    rows = raw.integer("max_position_embeddings", 512, MOST_POSITIONS)
    raw.must(rows > start, "max_position_embeddings", f"more than {start}, where positions begin")
    return int(rows - start)


def with_head(name: str) -> Section:
    """The ends of RoBERTa and its kin, whose layers stand below ``name``; the head has its activation
    whatever the blocks have."""
    return ends(f"{name}.pooler.dense", words="gelu")


KEYS = revise(
    BERT_KEYS,
    Key("", "context", read_length),
    Key("pad_token_id", "position.start", read_start, lambda start: start - 1),
    Key("", "position.length", read_length),
    without="max_position_embeddings",
)


def write_positions(model: Encoder) -> Settings:
    """Settings of positions."""
    position = stack(model).position
    rows = position.length + position.start if isinstance(position, Learned) else None
    return {"max_position_embeddings": rows}


def table(model: Encoder) -> Table:
    """The names of the weights of RoBERTa and its kin."""
    return with_ends(model, "roberta", trunk("roberta"))


def with_ends(
    model: Encoder,
    name: str,
    inside: Iterable[NameRule],
    unread: Iterable[str] = (),
    untied: str = "decoder.bias",
    choice: bool = False,
) -> Table:
    """The table of a trunk below ``name``, ``inside`` its rules, with RoBERTa's ends; how the
    weights of labels are called depends on the head. ``choice``: it is written as one, too."""
    pooler = f"{name}.pooler.dense"
    text = (f"{LABEL}.dense", f"{LABEL}.out_proj")
    score = (pooler, LABEL)
    is_text = not choice and model.labels > 0
    transform, proj = text if is_text else score
    layers = {"pool.transform": transform, "pool.proj": proj}
    # of choices, whose layers have the names of a pooler and of BERT's labels
    renamed = moved(*score, *text) if is_text else ()
    names = ("dense", "layer_norm")
    unread = (pooler, *unread)
    return encoder_pages.table(model, name, WORDS, inside, layers, unread, renamed, names, untied)


TEMPLATE = encoder(position=Learned(64, start=2), embed=Embed(64, segments=1))


def recipe(name: str) -> Recipe:
    """The recipe of a family with RoBERTa's config and names."""
    entries = (*KEYS, with_head("roberta"), Section(encode=write_positions))
    return page(name, words=ConfigWords(TEMPLATE, entries), weights=table)


recipe("roberta")
recipe("camembert")
recipe("xlm-roberta")

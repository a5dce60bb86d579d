"""RoBERTa and its kin in other languages: BERT's blocks whose positions begin at row 2 of their
table.

The row of position 0 is one more than the id of padding. CamemBERT and XLM-RoBERTa have the same
config and the same names, so that a model of which nothing else is known is written as RoBERTa.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ..core.config.embed_head import Embed, Head
from ..core.config.model import Encoder, stacks
from ..core.config.norm import LayerNorm
from ..core.config.pool import Pool
from ..core.config.position import Learned
from . import encoder_pages
from .bert import KEYS as BERT_KEYS
from .bert import bert, read_pooler
from .encoder_pages import (
    HEADS,
    head_of,
    label_layers,
    moved,
    read_heads,
    trunk,
    write_heads,
)
from .keys import MOST_POSITIONS, MOST_TOKENS, ConfigWords, Key, Section, revise
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe, Settings

WORDS, LABEL = "lm_head", "classifier"


def roberta(dim: int, depth: int, heads: int, vocab: int = 50_265) -> Encoder:
    """The shape of RoBERTa as pretrained, for words under masks; 512 positions, one segment."""
    model, norm = bert(dim, depth, heads), LayerNorm(1e-5)
    stack = stacks(model)["encoder"]
    blocks = tuple(replace(block, norm=norm) for block in stack.pattern)
    position = Learned(512, start=2)
    stack = replace(stack, pattern=blocks, position=position, first_norm=norm)
    words = Head(bias=True, transform="gelu", norm=norm)
    return replace(model, embed=Embed(vocab, segments=1), encoder=stack, head=words, pool=None)


def bge_m3() -> Encoder:
    """The shape of BGE M3, a sentence encoder: the first of at most 8,192 tokens, scaled to length
    1."""
    model = roberta(1024, 24, 16, 250_002)
    stack = replace(stacks(model)["encoder"], position=Learned(8192, start=2))
    pool = Pool("first", normalize=True)
    return replace(model, context=8192, encoder=stack, head=None, pool=pool)


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


KEYS = revise(
    BERT_KEYS,
    Key("", "context", read_length),
    Key("pad_token_id", "position.start", read_start, lambda start: start - 1),
    Key("", "position.length", read_length),
    without="max_position_embeddings",
)


def read_ends(raw: ConfigReader, trunk: Encoder, name: str) -> Encoder:
    """The model with the head that its architecture names, or the pooler of a bare one."""
    # transformers' head has this activation whatever the blocks have
    model = read_heads(raw, trunk, "tanh", "gelu")
    return model if head_of(raw) else replace(model, pool=read_pooler(raw, f"{name}."))


def write_ends(model: Encoder, family: str) -> Settings:
    """Settings of the head that a model has, and of its positions."""
    position = stacks(model)["encoder"].position
    rows = position.length + position.start if isinstance(position, Learned) else None
    return {**write_heads(model, family), "max_position_embeddings": rows}


def table(model: Encoder) -> Table:
    """The names of the weights of RoBERTa and its kin."""
    return with_ends(model, "roberta", trunk("roberta"))


def with_ends(
    model: Encoder,
    name: str,
    inside: Iterable[NameRule],
    unread: Iterable[str] = (),
    untied: str = "decoder.bias",
) -> Table:
    """The table of a trunk below ``name``, ``inside`` its rules, with RoBERTa's ends; how the
    weights of labels are called depends on the head."""
    pooler = f"{name}.pooler.dense"
    labels = model.pool is not None and model.pool.labels > 0
    layers = {
        f"{LABEL}.dense" if labels else pooler: "pool.transform",
        f"{LABEL}.out_proj": "pool.proj",
    }
    # of choices, whose layers have the names of a pooler and of BERT's labels
    choice = moved(pooler, LABEL, f"{LABEL}.dense", f"{LABEL}.out_proj") if labels else ()
    names = (f"{WORDS}.dense", f"{WORDS}.layer_norm")
    unread = (pooler, *unread)
    return encoder_pages.table(
        model, name, WORDS, names, inside, label_layers(model, layers), unread, choice, untied
    )


TEMPLATE = replace(roberta(128, 2, 2), head=None)
READ = partial(read_ends, name="roberta")


def recipe(name: str, family: str, paper: str, tokenizer: str, **sizes: Encoder) -> Recipe:
    """The recipe of a family with RoBERTa's config and names, its sizes with - for _."""
    return Recipe(
        name=name,
        paper=paper,
        sizes={size.replace("_", "-"): model for size, model in sizes.items()},
        family=family,
        heads=HEADS,
        tokenizer=tokenizer,
        words=ConfigWords(TEMPLATE, KEYS, [Section(READ, partial(write_ends, family=family))]),
        weights=table,
        fixed=("pad_token_id",),
    )


ROBERTA = recipe(
    "roberta",
    "Roberta",
    "Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach (arXiv 1907.11692)",
    "FacebookAI/roberta-base (byte-level BPE)",
    base=roberta(768, 12, 12),
    large=roberta(1024, 24, 16),
    distil=roberta(768, 6, 12),
)
CAMEMBERT = recipe(
    "camembert",
    "Camembert",
    "Martin et al. 2019, CamemBERT: a Tasty French Language Model (arXiv 1911.03894)",
    "almanach/camembert-base (SentencePiece)",
    base=roberta(768, 12, 12, 32_005),
    large=roberta(1024, 24, 16, 32_005),
)
XLM_ROBERTA = recipe(
    "xlm-roberta",
    "XLMRoberta",
    "Conneau et al. 2019, Unsupervised Cross-lingual Representation Learning at Scale (arXiv "
    "1911.02116); Chen et al. 2024, BGE M3",
    "FacebookAI/xlm-roberta-base (SentencePiece)",
    base=roberta(768, 12, 12, 250_002),
    large=roberta(1024, 24, 16, 250_002),
    bge_m3=bge_m3(),
)

"""Data: corpora, examples with answers, and shards of tokens; nothing heavy loads before its first
use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.files import lazily

if TYPE_CHECKING:
    from ...core.training.shards import Shards
    from .catalog import corpora, find
    from .corpus import Source
    from .splits import split_corpus, spread_corpus
    from .tokenising import shards_under, tokenise

_HOME = {
    "Shards": "...core.training.shards",
    "Source": ".corpus",
    "corpora": ".catalog",
    "find": ".catalog",
    "split_corpus": ".splits",
    "spread_corpus": ".splits",
    "tokenise": ".tokenising",
    "shards_under": ".tokenising",
}
__all__ = [
    "Shards",
    "Source",
    "corpora",
    "find",
    "shards_under",
    "split_corpus",
    "spread_corpus",
    "tokenise",
]
__getattr__, __dir__ = lazily(__name__, _HOME)

"""Tokenizers, trained and applied (formats/ reads published ones); nothing heavy loads early."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .. import registry
from ..files import lazily

if TYPE_CHECKING:
    from .detokenizer import Stream
    from .tokenizer import Tokenizer

_HOME = {"Stream": ".detokenizer", "Tokenizer": ".tokenizer"}
__all__ = ["Stream", "Tokenizer", "train"]
__getattr__, __dir__ = lazily(__name__, _HOME)


def train(
    kind: str,
    texts: Iterable[str] = (),
    size: int | None = None,
    specials: Sequence[str] | None = None,
) -> Tokenizer:
    """A tokenizer made from texts: char, byte, bpe, wordpiece, unigram or words, of ``size`` entries.

    formats/tokenizer_trainers.py says what each kind is.
    """
    (room,) = registry.load("tokenizer_trainers")
    tokenizer: Tokenizer = room.train(kind, texts, size, specials)
    return tokenizer

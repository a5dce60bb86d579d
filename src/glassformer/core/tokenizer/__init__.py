"""Tokenizers of every published format, read or trained; nothing heavy loads before its first
use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..files import lazily

if TYPE_CHECKING:
    from ...formats.tokenizer_files import open
    from .stream import Stream
    from .tokenizer import Tokenizer
    from .trainers import train

_HOME = {
    "Stream": ".stream",
    "Tokenizer": ".tokenizer",
    "open": "...formats.tokenizer_files",
    "train": ".trainers",
}
__all__ = ["Stream", "Tokenizer", "open", "train"]
__getattr__, __dir__ = lazily(__name__, _HOME)

"""Tokenizers, trained and applied (formats/ reads published ones); nothing heavy loads early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..files import lazily

if TYPE_CHECKING:
    from .tokenizer import Tokenizer
    from .trainers import train
    from .vocabulary import Stream

_HOME = {"Stream": ".vocabulary", "Tokenizer": ".tokenizer", "train": ".trainers"}
__all__ = ["Stream", "Tokenizer", "train"]
__getattr__, __dir__ = lazily(__name__, _HOME)

"""What a token is called beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


def pieces(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Tokens by the names that the vocabulary gives them; by their numbers without one, and where it has none."""
    size = 0 if tokenizer is None else tokenizer.size
    return [tokenizer.token(number) if tokenizer and number < size else f"#{number}" for number in ids]


def shown(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Tokens for a table: as they read, a space in front as a dot and a line's end as an arrow."""
    if tokenizer is None:
        return pieces(None, ids)
    told = []
    for number in ids:
        text = "" if number >= tokenizer.size else tokenizer.bytes_of(number).decode("utf-8", "replace")
        text = text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
        plain = text and text.isprintable() and not tokenizer.hides(number)
        told.append(text if plain else pieces(tokenizer, [number])[0])
    return told

"""The name of a token beside its numbers: by its vocabulary in data, as it reads in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.files import JsonObject

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

SIGNS = {" ": "·", "\t": "⇥", "\n": "↵", "\r": "␍"}


class TokenLabel(str):
    """A token by its name in the vocabulary (``Ġthe``, ``▁the``); ``display`` is the text it stands
    for (``·the``)."""

    __slots__ = ("display",)
    display: str

    def __new__(cls, name: str, display: str | None = None) -> TokenLabel:
        """``display`` None: the name itself."""
        piece = super().__new__(cls, name)
        piece.display = name if display is None else display
        return piece


def visible(text: str) -> str:
    """The text with signs for what cannot be seen: · a space, ⇥ a tab, ↵ a new line, \\x.. a
    control character."""
    return "".join(SIGNS.get(letter) or printed(letter) for letter in text)


def printed(letter: str) -> str:
    """A letter that a terminal can show, else a sign for it."""
    return letter if letter.isprintable() else SIGNS.get(letter, ascii(letter)[1:-1])


def pieces(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[TokenLabel]:
    """Tokens by the names that the vocabulary gives them; by their numbers without one, and where
    it has none."""
    return [
        TokenLabel(tokenizer.token(number), visible(text(tokenizer, number)))
        if tokenizer is not None and number < tokenizer.size
        else TokenLabel(f"#{number}")
        for number in ids
    ]


def token_record(tokenizer: Tokenizer | None, ids: Sequence[int]) -> JsonObject:
    """Tokens as JSON holds them: ``pieces`` is None without a tokenizer."""
    return {"ids": ids, "pieces": None if tokenizer is None else pieces(tokenizer, ids)}


def display_texts(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Tokens for a table: as they read, with signs for blanks; bytes that are no character by
    themselves as ⟨f0⟩."""
    return [piece.display for piece in pieces(tokenizer, ids)]


def text(tokenizer: Tokenizer, id: int) -> str:
    """The text that a token stands for; bytes that are no character by themselves as ⟨f0⟩, a
    special token its name."""
    name = tokenizer.token(id)
    if tokenizer.hides(id):
        return name
    raw = tokenizer.bytes_of(id)
    try:
        return raw.decode() or name
    except UnicodeDecodeError:
        return "".join(f"⟨{byte:02x}⟩" for byte in raw)


def json_number(value: float) -> float | str:
    """A number as JSON holds it; by its name (NaN, Infinity, -Infinity) where it is not finite."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

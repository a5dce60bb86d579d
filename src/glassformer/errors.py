"""The one kind of error that is the user's to mend, and how it is worded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 1500  # characters of a message


class UserError(ValueError):
    """A mistake the user can mend; its text is one sentence that says what to do.

    The command line prints it without a traceback and exits with 2. What a file put into it cannot steer a terminal:
    line ends, escapes and other characters without a shape are written as such, and a long text loses its middle.
    """

    def __init__(self, sentence: str) -> None:
        half = (LONGEST - 5) // 2
        if len(sentence) > LONGEST:
            sentence = f"{sentence[:half]} ... {sentence[-half:]}"
        shown = sentence if sentence.isprintable() else "".join(map(_shown, sentence))
        super().__init__(shown if len(shown) <= LONGEST else f"{shown[:half]} ... {shown[-half:]}")


def _shown(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def need(fact: bool, sentence: str) -> None:
    """Raise UserError with ``sentence`` unless the fact holds."""
    if not fact:
        raise UserError(sentence)


def nearest(word: str, words: Iterable[str]) -> str:
    """A closing hint for an unknown word: ' Did you mean "depth"?', or the whole short list."""
    words = sorted(set(words))
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f' Did you mean "{close[0]}"?'
    return f" Known: {', '.join(words)}." if 0 < len(words) <= 30 else ""


def above_zero(part: object, *names: str) -> None:
    """Refuse a config whose numbers under these names are not above 0; None stands for a default."""
    for name in names:
        value = getattr(part, name)
        need(value is None or value > 0, f"{type(part).__name__}.{name} is {value}; give a number above 0.")

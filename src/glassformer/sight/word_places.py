"""Words in an address: the token of the vocabulary, or of the text, that a word stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, must_be_known, need
from .labels import display_texts, pieces

if TYPE_CHECKING:
    from ..core.nn import Model
    from ..core.tokenizer.tokenizer import Tokenizer


def word_id(model: Model | int, tokenizer: Tokenizer | None, word: str | int) -> int:
    """The one token of a model (or of so many words) that a word is: an id, a name of the
    vocabulary (``Ġtired``), a text of one token (" tired"), or the token as a table shows it
    (``·tired``).

    Raises UserError for an id that the model lacks and for a text of several tokens, which are
    named.
    """
    vocab = model if isinstance(model, int) else model.config.embed.vocab
    if isinstance(word, int):
        must_be_known([word], vocab)
        return word
    if tokenizer is None:
        raise UserError(f'"{word}" needs a tokenizer; give one, or give the token\'s id.')
    token = tokenizer.id(word)
    if token is None:
        ids = tokenizer.encode(word)
        if len(ids) != 1:
            ids = [
                id
                for id, piece in enumerate(pieces(tokenizer, range(tokenizer.size)))
                if piece.display == word
            ] or ids
        named = " ".join(display_texts(tokenizer, ids))
        hint = (
            "; give one of them, or a word of one "
            f"token{'' if word.startswith(' ') else ', perhaps with a space'}"
        )
        need(
            len(ids) == 1,
            f'"{word}" is {len(ids)} tokens for this tokenizer ({named}){hint if ids else ""}.',
        )
        token = ids[0]
    need(
        token < vocab,
        f'"{word}" is token {token} and this model knows 0 to {vocab - 1}; use its own tokenizer.',
    )
    return token


def place_of_word(trace: Any, value: Any, axis: str, word: str) -> str:
    """The place of a token along a side: in the vocabulary, or the one place in the text where
    it stands."""
    name, word = value.address, word[1:-1]
    if axis == "V":
        return str(word_id(value.shape[-1], trace.tokenizer, word))
    if axis not in ("T", "S") or trace.tokenizer is None:
        raise UserError(f'{name} has no words along {axis}; give a number, not "{word}".')
    ids, reader = trace.side(value, axis)
    labels, named = display_texts(reader, ids), pieces(reader, ids)
    texts = [label.replace("·", " ") for label in labels]
    forms = zip(labels, texts, map(str.strip, texts), named, strict=True)
    positions = [at for at, words in enumerate(forms) if word in words]
    if len(positions) == 1:
        return str(positions[0])
    if positions:
        raise UserError(
            f'"{word}" occurs at {" and ".join(map(str, positions))}; give one of these numbers.'
        )
    numbered = [f"{at} {label}" for at, label in enumerate(labels)]
    for start in range(len(texts)):
        for end in range(start + 2, min(start + 12, len(texts)) + 1):
            if "".join(texts[start:end]).strip() == word.strip():
                several = ", ".join(numbered[start:end])
                count = end - start
                raise UserError(
                    f'"{word}" is {count} tokens of the text: {several}. Give one number.'
                )
    available = ", ".join(numbered[:40])
    raise UserError(f'No token of the text is "{word}"; give a number. There are: {available}.')

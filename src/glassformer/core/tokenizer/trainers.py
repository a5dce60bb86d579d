"""Train a tokenizer: characters, bytes, BPE, WordPiece or Unigram of any size, or words as white
space parts them. The trainers are registered from outside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .. import registry
from ..errors import UserError, nearest, need
from .tokenizer import Tokenizer

END = "<|endoftext|>"
TRAINED = ("char", "byte", "bpe", "wordpiece", "unigram", "words")
SIZED = ("bpe", "wordpiece", "unigram", "words")  # those whose size is a choice
SPECIALS = {
    "words": ("<pad>", "<unk>", "<s>", "</s>"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "unigram": ("<pad>", "<unk>", "</s>"),
}  # where they are not END alone
MOST = 1 << 22  # entries; the largest published vocabularies have 262,144
LOOKS_SPECIAL = re.compile(
    r"<\|[^\s<>|]{1,40}\|>|</?s>|<(?:pad|unk|mask|bos|eos)>|\[(?:PAD|UNK|CLS|SEP|MASK)\]"
)
DEFAULT_SIZE = 4096  # of a BPE, a WordPiece and a Unigram, when no size is given


def train(
    kind: str,
    texts: Iterable[str] = (),
    size: int | None = None,
    specials: Sequence[str] | None = None,
) -> Tokenizer:
    """A tokenizer of one of the kinds TRAINED, made from texts; special tokens take the last ids.

    char: an id per character of the texts, in code-point order; a character it does not know is an
    error that says where, or ``<unk>`` when that is among the specials. byte: an id per byte; needs
    no texts. bpe: GPT-2's split into words and ``size`` entries in all (fewer when the texts hold
    no more pairs). wordpiece: BERT's split into words, capitals kept, ``##`` before what goes on a
    word; at most ``size`` entries. unigram: SentencePiece's: pieces with a probability each, spaces
    as ``▁``; about ``size`` entries, never more. words: an id per word between white space, the
    most frequent ones up to ``size`` entries; others are ``<unk>``. ``specials`` None is
    ``<|endoftext|>``, or those of SPECIALS. Where a special token is written in a text it is not
    learnt, and nothing is learnt across it (a char tokenizer takes its characters as they come).
    """
    if kind not in TRAINED:
        raise UserError(f'There is no kind of tokenizer "{kind}" to train.{nearest(kind, TRAINED)}')
    specials = list(SPECIALS.get(kind, (END,)) if specials is None else specials)
    named = all(isinstance(name, str) and name for name in specials)
    if not named or len({*specials}) != len(specials):
        raise UserError("Special tokens must be different texts; give each once.")
    if size is not None and not 0 < size <= MOST:
        raise UserError(f"A vocabulary of {size:,} entries cannot be trained; give 1 to {MOST:,}.")
    texts = _checked((texts,) if isinstance(texts, str) else texts)
    (room,) = registry.load("tokenizer_trainers")  # formats/tokenizer_trainers.py
    tokenizer: Tokenizer = room.train(kind, texts, size, specials)
    return tokenizer


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; UserError for what is not a text, and where there was none."""
    empty = True
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"A tokenizer trains on texts; text {number} is a {type(text).__name__}."
            )
        if any("\ud800" <= letter <= "\udfff" for letter in set(text)):
            raise UserError(f"Text {number} has half of a surrogate pair in it; remove it.")
        empty = empty and not text
        yield text
    need(not empty, "There is no text to train a tokenizer on; give some.")


def written_specials(text: str) -> list[str]:
    """Pieces of a text that look like a special token: <|endoftext|>, </s>, [MASK]."""
    return LOOKS_SPECIAL.findall(text)

"""Train WordPiece and Unigram vocabularies, by the `tokenizers` library, as published files hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from . import formats, sentencepiece
from .specification import Spec

if TYPE_CHECKING:
    import tokenizers

UNKNOWN_SCORE = 0.0  # no path uses it: the unknown is found by not being a piece


def wordpiece(texts: Iterator[str], size: int, specials: list[str]) -> Spec:
    """A WordPiece vocabulary as BERT's vocab.txt has it, capitals kept; the same texts give the same one."""
    from tokenizers import trainers

    if not {"[UNK]", "[CLS]", "[SEP]"} <= set(specials):
        raise UserError("A WordPiece tokenizer needs [UNK], [CLS] and [SEP] among its special tokens; add them.")
    library = _library(formats.wordpiece(["a", *specials], specials))
    held = list(texts)
    words: set[str] = set()
    for text in held:
        words.update(word for word, _ in library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(text)))
    if not words:
        raise UserError("There is no word in this text; give one that has some.")
    inner = sorted({f"##{letter}" for word in words for letter in word[1:]})  # given first, else in a random order
    _fits(len({*inner, *"".join(words), *specials}), size, "WordPiece")
    trainer = trainers.WordPieceTrainer(vocab_size=size - len(specials), special_tokens=inner, show_progress=False)
    ids = _trained(library, trainer, iter(held))["vocab"]
    names = [name for name in sorted(ids, key=lambda name: int(ids[name])) if name not in specials]
    return formats.wordpiece([*names, *specials], specials)


def unigram(texts: Iterator[str], size: int, specials: list[str]) -> Spec:
    """A Unigram vocabulary as SentencePiece makes it: every space and line is kept, unknown characters are not."""
    from tokenizers import trainers

    if "<unk>" not in specials:
        raise UserError('A Unigram tokenizer needs "<unk>" among its special tokens; add it.')
    seen: set[str] = {sentencepiece.MARK}

    def noticed() -> Iterator[str]:
        for text in texts:
            seen.update(text)
            yield text

    trainer = trainers.UnigramTrainer(
        vocab_size=max(1, size - len(specials) + 1), special_tokens=[], unk_token="<unk>", show_progress=False
    )
    room = size - len(specials)
    try:
        pieces = _trained(_library(_unigram([["a", -1.0]], specials)), trainer, noticed())["vocab"]
    except UserError:
        _fits(len(seen - {" "}) + len(specials), size, "Unigram")
        raise
    _fits(len(seen - {" "}) + len(specials), size, "Unigram")
    kept = sorted((-score, piece) for piece, score in pieces if piece not in specials)[:room]
    return _unigram([[piece, -score] for score, piece in kept], specials)


def _unigram(pieces: list[list[Any]], specials: list[str]) -> Spec:
    """The specification of a SentencePiece model with these pieces, then these special tokens."""
    listed = [sentencepiece.Piece(piece, score, sentencepiece.NORMAL) for piece, score in pieces]
    for name in specials:
        kind = sentencepiece.UNKNOWN if name == "<unk>" else sentencepiece.CONTROL
        listed.append(sentencepiece.Piece(name, UNKNOWN_SCORE, kind))
    model = sentencepiece.Model(listed, sentencepiece.UNIGRAM, b"", True, False, True, False, {})
    return sentencepiece.specification(model)


def _library(spec: Spec) -> tokenizers.Tokenizer:
    """The library's tokenizer, which normalises and splits texts as ``spec`` says."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(json.dumps({**spec, "post_processor": None}))


def _trained(library: tokenizers.Tokenizer, trainer: Any, texts: Iterator[str]) -> dict[str, Any]:
    """The model that the library's trainer makes of texts."""
    try:
        library.train_from_iterator(texts, trainer)
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's own panics are no Exceptions
        raise UserError(f"No vocabulary can be made of this text ({error}); give more text, or another size.") from None
    model: dict[str, Any] = json.loads(library.to_str())["model"]
    return model


def _fits(needed: int, size: int, kind: str) -> None:
    """UserError where the characters and special tokens alone are more than the size."""
    if needed > size:
        raise UserError(
            f"The characters of this text and the special tokens alone make a {kind} vocabulary of {needed} entries; "
            f"give a size of {needed} or more."
        )

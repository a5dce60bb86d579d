"""Train WordPiece (by `tokenizers`) and Unigram (by `sentencepiece`) vocabularies, as published
files hold them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import UserError, need
from ..core.tokenizer.tokenizer_json import Spec, library_errors, load
from . import sentencepiece
from .wordpiece import wordpiece as written

if TYPE_CHECKING:
    import tokenizers

# characters; a longer line is read as several, as SentencePiece would leave it out
LONGEST_LINE = 4096
UNKNOWN_SCORE = 0.0  # no path uses it: the unknown is found by not being a piece


def wordpiece(texts: Iterator[str], size: int, specials: list[str]) -> Spec:
    """A WordPiece vocabulary as BERT's vocab.txt has it, capitals kept; the same texts give the
    same one."""
    from tokenizers import trainers

    if not {"[UNK]", "[CLS]", "[SEP]"} <= set(specials):
        raise UserError(
            "A WordPiece tokenizer needs [UNK], [CLS] and [SEP] among its special tokens; add them."
        )
    library = load(written(["a", *specials], specials), "The tokenizer")
    text_list = list(texts)
    letters, inner_letters = _word_letters(library, text_list)
    need(bool(letters), "There is no word in this text; give one that has some.")
    inner = [f"##{letter}" for letter in inner_letters]  # given first, else in a random order
    _fits(len({*inner, *letters, *specials}), size, "WordPiece")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - len(specials), special_tokens=inner, show_progress=False
    )
    ids = _trained(library, trainer, iter(text_list))["vocab"]
    names = [name for name in sorted(ids, key=lambda name: int(ids[name])) if name not in specials]
    return written([*names, *specials], specials)


def _word_letters(
    library: tokenizers.Tokenizer, texts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The characters of all words, and those that stand inside one, each in order.

    BERT's split asks of each character alone whether it stays with its neighbours, so every
    character is tried once, and all neighbours are looked at in one pass: splitting the texts to
    see their words would take as long as training.
    """
    # 0: not tried, 1: with its neighbours, 2: a word of its own, 3: white space
    stays = np.zeros(0x110000, np.int8)
    visited, inside = np.zeros(0x110000, bool), np.zeros(0x110000, bool)
    for text in texts:
        codes = np.frombuffer(library.normalizer.normalize_str(text).encode("utf-32-le"), "<u4")
        for code in np.unique(codes):
            if not stays[code]:
                words = [
                    word for word, _ in library.pre_tokenizer.pre_tokenize_str(f"a{chr(code)}a")
                ]
                stays[code] = 1 if len(words) == 1 else 2 if len(words) == 3 else 3
        visited[codes[stays[codes] < 3]] = True
        joined = stays[codes] == 1
        inside[codes[1:][joined[1:] & joined[:-1]]] = True
    return [chr(code) for code in np.flatnonzero(visited)], [
        chr(code) for code in np.flatnonzero(inside)
    ]


def unigram(texts: Iterator[str], size: int, specials: list[str]) -> Spec:
    """A Unigram vocabulary by SentencePiece's own trainer, a line a sentence: every space and line
    break is kept.

    Unknown characters are not. The same texts give the same vocabulary: one thread adds up in one
    order.
    """
    import sentencepiece as library

    need("<unk>" in specials, 'A Unigram tokenizer needs "<unk>" among its special tokens; add it.')
    letters: set[str] = set()
    model = io.BytesIO()

    def lines() -> Iterator[str]:
        for text in texts:
            letters.update(text)
            for line in text.split("\n"):
                yield from (
                    line[at : at + LONGEST_LINE] for at in range(0, len(line), LONGEST_LINE)
                )

    failed = None
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type="unigram",
            vocab_size=max(2, size - len(specials) + 1),  # its own <unk> is one of them
            hard_vocab_limit=False,
            user_defined_symbols=["\n"],
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            max_sentence_length=4 * LONGEST_LINE,
            num_threads=1,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=3,
        )
    except (RuntimeError, OSError) as error:
        failed = error
    _fits(len(letters - {" "} | {sentencepiece.MARK}) + len(specials), size, "Unigram")
    if failed is not None:
        raise _no_vocabulary(failed)
    processor = library.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [
        [processor.id_to_piece(id), processor.get_score(id)]
        for id in range(processor.get_piece_size())
    ]
    scored = [
        [piece, score]
        for piece, score in pieces
        if piece not in specials and (piece != "\n" or "\n" in letters)
    ]
    return _unigram(scored[: size - len(specials)], specials)


def _unigram(pieces: list[list[Any]], specials: list[str]) -> Spec:
    """The specification of a SentencePiece model with these pieces, then these special tokens."""
    listed = [
        sentencepiece.VocabularyEntry(piece, score, sentencepiece.NORMAL) for piece, score in pieces
    ]
    for name in specials:
        kind = sentencepiece.UNKNOWN if name == "<unk>" else sentencepiece.CONTROL
        listed.append(sentencepiece.VocabularyEntry(name, UNKNOWN_SCORE, kind))
    model = sentencepiece.SentencePieceModel(
        listed, sentencepiece.UNIGRAM, b"", True, False, True, False, {}
    )
    return sentencepiece.to_tokenizer_json(model)


def _no_vocabulary(error: BaseException) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
    return UserError(
        f"No vocabulary can be made of this text ({reason}); give more text, or another size."
    )


def _trained(library: tokenizers.Tokenizer, trainer: Any, texts: Iterator[str]) -> dict[str, Any]:
    """The model that the library's trainer makes of texts."""
    with library_errors(_no_vocabulary):
        library.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(library.to_str())["model"]
    return model


def _fits(needed: int, size: int, kind: str) -> None:
    """UserError where the characters and special tokens alone are more than the size."""
    if needed > size:
        raise UserError(
            f"The characters of this text and the special tokens alone make a {kind} vocabulary "
            f"of {needed} entries; "
            f"give a size of {needed} or more."
        )


TRAINERS = {"wordpiece": wordpiece, "unigram": unigram}

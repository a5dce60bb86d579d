"""Train a tokenizer: BPE and WordPiece by `tokenizers`, Unigram by `sentencepiece`, and the
vocabularies that are a list: characters, bytes, words as white space parts them."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, library_errors, nearest, need
from ..core.tokenizer import Tokenizer
from ..core.tokenizer.detokenizer import byte_alphabet, bytes_by_letter
from ..core.tokenizer.tokenizer import open_library, reason
from ..core.tokenizer.tokenizer_json import USUAL, Spec, make_spec
from . import sentencepiece, wordpiece
from .byte_level import RankEncoding, byte_level, split
from .tokenizer_forms import added_token, tokenizer_of

if TYPE_CHECKING:
    import tokenizers

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
# characters; a longer line is read as several, as SentencePiece would leave it out
LONGEST_LINE = 4096


# ------------------------------------------------------------------------------------ whole pieces


def _char(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    letters = {letter for text in texts for letter in set(text)}
    need(
        letters.isdisjoint(specials),
        "A special token is one of the text's characters; give it a longer name.",
    )
    names = [*sorted(letters), *specials]
    if size not in (None, len(names)):
        raise UserError(
            f"These texts make a character tokenizer of {len(names)} entries; leave out the size."
        )
    # with no "<unk>" in the vocabulary the library refuses an unknown character
    return _whole(names, specials, split(r"[\s\S]"), {"type": "Fuse"})


def _words(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    frequencies = Counter(word for text in _between(specials, texts) for word in text.split())
    for name in specials:
        frequencies.pop(name, None)  # written in a text it is a word that nobody knows
    room = None if size is None else size - len(specials)
    if room is not None and room < 1:
        raise UserError(
            f"A word tokenizer needs more than its {len(specials)} special tokens; "
            "give a larger size."
        )
    names = sorted(frequencies, key=lambda word: (-frequencies[word], word))[:room]
    return _whole([*names, *specials], specials, {"type": "WhitespaceSplit"}, None)


def _whole(names: list[str], specials: list[str], parted: Spec, decoder: Spec | None) -> Spec:
    """A vocabulary of whole pieces, as ``parted`` cuts a text; no decoder puts a space between
    them."""
    ids = {name: id for id, name in enumerate(names)}
    return make_spec(
        {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
        added_tokens=[added_token(ids[name], name) for name in specials],
        pre_tokenizer=parted,
        decoder=decoder,
    )


def _bytes(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    ids = {name: 256 + at for at, name in enumerate(specials)}
    if size not in (None, 256 + len(ids)):
        raise UserError(f"A byte tokenizer has {256 + len(ids)} entries; leave out the size.")
    spec = byte_level(bytes_by_letter(), [], RankEncoding(None, ids))
    spec["pre_tokenizer"]["use_regex"] = False  # words do not matter
    return spec


# ---------------------------------------------------------------------------------------- subwords


def _between(specials: Sequence[str], texts: Iterator[str]) -> Iterator[str]:
    """Texts between the special tokens that are written in the texts."""
    cut = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))) or r"(?!)")
    for text in texts:
        yield from cut.split(text)


def _bpe(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    room = (size or DEFAULT_SIZE) - len(specials)
    if room < 256:
        raise UserError(
            f"A byte-level BPE has at least {256 + len(specials)} entries; give a larger size."
        )
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = list(byte_alphabet().values())
    trainer = trainers.BpeTrainer(
        vocab_size=room, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    model = _trained(library, trainer, _between(specials, texts))
    names = dict.fromkeys([*alphabet, *model["vocab"]])  # a byte's id is its value
    vocabulary = {name: id for id, name in enumerate(names)}
    kind = RankEncoding(None, {name: len(vocabulary) + at for at, name in enumerate(specials)})
    spec = byte_level(vocabulary, model["merges"], kind)
    for token in spec["added_tokens"]:  # a word has its space in it, so a hidden word takes it too
        token["lstrip"] = token["content"] in USUAL["mask"]
    return spec


def _wordpiece(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    """BERT's kind, as its vocab.txt has it, capitals kept; the same texts give the same one."""
    from tokenizers import trainers

    if not {"[UNK]", "[CLS]", "[SEP]"} <= set(specials):
        raise UserError(
            "A WordPiece tokenizer needs [UNK], [CLS] and [SEP] among its special tokens; add them."
        )
    size = size or DEFAULT_SIZE
    library = open_library(wordpiece.wordpiece(["a", *specials], specials), "The tokenizer")
    pieces = list(_between(specials, texts))
    letters = _word_letters(library, pieces)
    need(bool(letters), "There is no word in this text; give one that has some.")
    _fits(len({*letters, *specials}), size, "WordPiece")
    inner = [letter for letter in letters if letter.startswith("##")]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - len(specials), special_tokens=inner, show_progress=False
    )
    entries = _trained(library, trainer, iter(pieces))["vocab"]
    names = [name for name in entries if name not in specials]
    return wordpiece.wordpiece([*names, *specials], specials)


def _word_letters(library: tokenizers.Tokenizer, texts: Sequence[str]) -> list[str]:
    """The characters that words begin with or hold, in order: ``##`` before those inside one.

    The trainer lists those inside in a random order, unless it is given them.
    """
    from tokenizers import trainers

    trainer = trainers.WordPieceTrainer(vocab_size=0, show_progress=False)
    return sorted(_trained(library, trainer, iter(texts))["vocab"])


def _trained(library: tokenizers.Tokenizer, trainer: Any, texts: Iterator[str]) -> Spec:
    """The model that the library's trainer makes of texts, its entries in the order of ids."""
    with library_errors(_no_vocabulary):
        library.train_from_iterator(texts, trainer)
    model: Spec = json.loads(library.to_str())["model"]
    return {**model, "vocab": sorted(model["vocab"], key=lambda name: int(model["vocab"][name]))}


def _unigram(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    """A Unigram vocabulary by SentencePiece's own trainer, a line a sentence: every space and line
    break is kept.

    Unknown characters are not. The same texts give the same vocabulary: one thread adds up in one
    order.
    """
    import sentencepiece as library

    need("<unk>" in specials, 'A Unigram tokenizer needs "<unk>" among its special tokens; add it.')
    size = size or DEFAULT_SIZE
    letters: set[str] = set()
    model = io.BytesIO()

    def lines() -> Iterator[str]:
        for text in _between(specials, texts):
            letters.update(text)
            for line in text.split("\n"):
                for at in range(0, len(line), LONGEST_LINE):
                    yield line[at : at + LONGEST_LINE]

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
    names = map(processor.id_to_piece, range(processor.get_piece_size()))
    unused = {*specials} | ({"\n"} - letters)
    pieces = [
        sentencepiece.VocabularyEntry(name, processor.get_score(id))
        for id, name in enumerate(names)
        if name not in unused
    ][: size - len(specials)]
    for name in specials:  # no path uses their score: the unknown is found by not being a piece
        kind = sentencepiece.UNKNOWN if name == "<unk>" else sentencepiece.CONTROL
        pieces.append(sentencepiece.VocabularyEntry(name, 0.0, kind))
    return sentencepiece.to_tokenizer_json(
        sentencepiece.SentencePieceModel(pieces, fewer_spaces=False)
    )


def _no_vocabulary(error: BaseException) -> UserError:
    return UserError(
        f"No vocabulary can be made of this text ({reason(error)}); give more text, or another "
        "size."
    )


def _fits(needed: int, size: int, kind: str) -> None:
    """UserError where the characters and special tokens alone are more than the size."""
    if needed > size:
        raise UserError(
            f"The characters of this text and the special tokens alone make a {kind} vocabulary "
            f"of {needed} entries; give a size of {needed} or more."
        )


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
    return tokenizer_of(TRAINERS[kind](texts, size, specials))


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


TRAINERS = {
    "char": _char,
    "byte": _bytes,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "words": _words,
}

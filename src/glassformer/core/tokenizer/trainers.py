"""Train a tokenizer: characters, bytes, BPE, WordPiece or Unigram of any size, or words as white
space parts them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .. import registry
from ..errors import UserError, nearest, need
from .byte_bpe import RankEncoding, byte_level
from .tokenizer import Tokenizer
from .tokenizer_json import Spec, added_token, make_spec, split
from .vocabulary import byte_alphabet, bytes_by_letter

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
    if isinstance(texts, str):
        texts = (texts,)
    specials = list(SPECIALS.get(kind, (END,)) if specials is None else specials)
    if len(set(specials)) != len(specials) or not all(
        isinstance(name, str) and name for name in specials
    ):
        raise UserError("Special tokens must be different texts; give each once.")
    if size is not None and not 0 < size <= MOST:
        raise UserError(f"A vocabulary of {size:,} entries cannot be trained; give 1 to {MOST:,}.")
    if kind == "char":
        return Tokenizer(_char(_checked(texts), size, specials))
    if kind == "byte":
        if size not in (None, 256 + len(specials)):
            raise UserError(
                f"A byte tokenizer has {256 + len(specials)} entries; leave out the size."
            )
        return Tokenizer(_bytes(specials))
    if kind == "words":
        return Tokenizer(_words(_between(specials, _checked(texts)), size, specials))
    trainers = {"bpe": _bpe}
    for module in registry.load("tokenizer_trainers"):
        trainers |= module.TRAINERS
    if kind in trainers:
        size = DEFAULT_SIZE if size is None else size
        return Tokenizer(trainers[kind](_between(specials, _checked(texts)), size, specials))
    raise UserError(f'There is no kind of tokenizer "{kind}" to train.{nearest(kind, TRAINED)}')


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; UserError for what is not a text, and in the end when there was
    none."""
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


def _between(specials: Sequence[str], texts: Iterator[str]) -> Iterator[str]:
    """Texts between the special tokens that are written in the texts."""
    cut = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))) or r"(?!)")
    for text in texts:
        yield from cut.split(text)


def written_specials(text: str) -> list[str]:
    """Pieces of a text that look like a special token, as often as they occur: <|endoftext|>, </s>,
    [MASK]."""
    return LOOKS_SPECIAL.findall(text)


def _char(texts: Iterator[str], size: int | None, specials: list[str]) -> Spec:
    letters: set[str] = set()
    for text in texts:
        letters.update(text)
    need(
        not letters & set(specials),
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
    frequencies = Counter(word for text in texts for word in text.split())
    for name in specials:
        frequencies.pop(name, None)  # written in a text it is a word that nobody knows
    room = None if size is None else size - len(specials)
    if room is not None and room < 1:
        raise UserError(
            f"A word tokenizer needs more than its {len(specials)} special tokens; "
            "give a larger size."
        )
    names = [
        word for word, _ in sorted(frequencies.items(), key=lambda item: (-item[1], item[0]))[:room]
    ]
    return _whole([*names, *specials], specials, {"type": "WhitespaceSplit"}, None)


def _whole(names: list[str], specials: list[str], parted: Spec, decoder: Spec | None) -> Spec:
    """A vocabulary of whole pieces, as ``parted`` cuts a text; no decoder puts a space between
    them."""
    ids = {name: id for id, name in enumerate(names)}
    added = [added_token(ids[name], name) for name in specials]
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    return make_spec(model, added_tokens=added, pre_tokenizer=parted, decoder=decoder)


def _bytes(specials: list[str]) -> Spec:
    spec = byte_level(
        bytes_by_letter(),
        [],
        RankEncoding(None, {name: 256 + i for i, name in enumerate(specials)}),
    )
    spec["pre_tokenizer"]["use_regex"] = False  # words do not matter
    return spec


def _bpe(texts: Iterator[str], size: int, specials: list[str]) -> Spec:
    if size < 256 + len(specials):
        raise UserError(
            f"A byte-level BPE has at least {256 + len(specials)} entries; give a larger size."
        )
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = list(byte_alphabet().values())
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(specials),
        initial_alphabet=alphabet,
        special_tokens=[],
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    model = json.loads(library.to_str())["model"]
    ordered = sorted(model["vocab"], key=lambda name: int(model["vocab"][name]))
    names = dict.fromkeys([*alphabet, *ordered])  # a byte's id is its value
    vocabulary = {name: id for id, name in enumerate(names)}
    kind = RankEncoding(None, {name: len(vocabulary) + i for i, name in enumerate(specials)})
    return byte_level(vocabulary, model["merges"], kind)

"""Byte-level BPE by the word: a word that was met before has the ids it had then.

    text --split by the published pattern, in Python's ``re``--> words --dictionary--> ids; a new word: the library

The split is the library's own, written once more for speed. It serves only texts in which the library itself was seen
to take every character for what it is here: a letter, a number, white space or anything else.
"""

from __future__ import annotations

import array
import functools
import re
import unicodedata
from typing import TYPE_CHECKING

from .ranks import WORDS
from .specification import Spec
from .stream import byte_alphabet

if TYPE_CHECKING:
    import tokenizers

SHORT = 2048
"""Characters: below these a dictionary gains nothing."""
MOST = 1 << 18
"""Words that are kept, some tens of MB; then they are forgotten and met again."""
LONGEST = 64
"""Characters of a word that is kept."""
BLANK = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
FOLDED = "ſ"
"""Not an s, but equal to one where capitals do not matter: engines differ on it."""
PATTERNS = {
    None: r"'s|'t|'re|'ve|'m|'ll|'d| ?[{N}]++| ?[^{S}{L}{N}]++|[{S}]+(?![^{S}])|[{S}]+",
    WORDS.format(digits="{1,3}"): "[{N}]{{1,3}}",
    WORDS.format(digits=""): "[{N}]",
}
"""A published pattern (None: GPT-2's) -> what follows the letters in ours, or how many digits go together."""
LIKE_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n{L}{N}]?[{L}]++|DIGITS| ?[^{S}{L}{N}]++[\r\n]*"
    r"|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+"
)
FIRST = r" ?[{L}]++|\n(?=[^{S}])|"
"""Most of a text, tried first: nothing else of a pattern begins with a letter, or with a space and then a letter."""


@functools.cache
def _classes() -> tuple[str, str]:
    """The letters and the numbers of the basic plane, as ranges of a regular expression."""
    ranges: dict[str, list[list[int]]] = {"L": [], "N": []}
    for code in range(0x10000):
        runs = ranges.get(unicodedata.category(chr(code))[0])
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        elif runs is not None:
            runs.append([code, code])
    letters, numbers = ("".join(f"\\u{a:04x}-\\u{b:04x}" for a, b in ranges[name]) for name in "LN")
    return letters, numbers


@functools.cache
def _splitter(pattern: str | None, ascii: bool) -> re.Pattern[str]:
    """A published pattern for Python; the short one for ASCII is the faster."""
    letters, numbers = ("A-Za-z", "0-9") if ascii else _classes()
    rest = PATTERNS[pattern] if pattern is None else LIKE_GPT4.replace("DIGITS", PATTERNS[pattern])
    return re.compile((FIRST + rest).format(L=letters, N=numbers, S=BLANK))


def _pattern(spec: Spec) -> tuple[bool, str | None]:
    """Whether this tokenizer splits as a pattern that is known here, and which."""
    before = spec.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers") if before.get("type") == "Sequence" else [before]
    *cuts, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True) or len(cuts) > 1:
        return False, None
    if not cuts:
        return bool(last.get("use_regex", True)), None
    cut = cuts[0]
    pattern = cut.get("pattern", {}).get("Regex") if cut.get("type") == "Split" else None
    plain = cut.get("behavior") == "Isolated" and not cut.get("invert") and last.get("use_regex") is False
    return plain and pattern in PATTERNS and pattern is not None, pattern


class Memory(dict[str, bytes]):
    """Words and their ids (uint32, as bytes) under one tokenizer; ``of`` makes one where the tokenizer allows it."""

    def __init__(self, library: tokenizers.Tokenizer, pattern: str | None) -> None:
        super().__init__()
        self.pattern, self.plain = pattern, library.normalizer is None
        self.split, self.model = library.pre_tokenizer.pre_tokenize_str, library.model
        self.letters = byte_alphabet()
        self.proven: set[str] = {" "}
        self.strange: set[str] = {FOLDED}

    @classmethod
    def of(cls, spec: Spec, library: tokenizers.Tokenizer) -> Memory | None:
        """The memory of a byte-level BPE with a known split and no token that is found before it; else None."""
        known, pattern = _pattern(spec)
        model, steady = spec["model"], (spec.get("normalizer") or {"type": "NFC"})["type"] == "NFC"
        whole = all(letter in model["vocab"] for letter in byte_alphabet().values()) if known else False
        ordinary = all(token["special"] for token in spec["added_tokens"])
        affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        return cls(library, pattern) if known and steady and whole and ordinary and not affixes else None

    def ids(self, text: str) -> array.array[int] | None:
        """The text's ids; None for a text that only the library can read, or that is too short to gain."""
        if len(text) < SHORT or not self._readable(text):
            return None
        if len(self) > MOST:
            self.clear()
        words = _splitter(self.pattern, text.isascii()).findall(text)
        return array.array("I", b"".join(map(self.__getitem__, words)))

    def __missing__(self, word: str) -> bytes:
        """A word that is new: the library's model says its ids."""
        written = word.encode().decode("latin-1").translate(self.letters)
        ids = array.array("I", [token.id for token in self.model.tokenize(written)]).tobytes()
        if len(word) <= LONGEST:
            self[word] = ids
        return ids

    def _readable(self, text: str) -> bool:
        """Whether every character is proven to be what it is here."""
        if text.isascii():
            if not self.proven >= ASCII:
                self._prove(ASCII)
            return self.strange.isdisjoint(ASCII) or self.strange.isdisjoint(text)
        if not self.plain:  # NFC changes no ASCII, and may change the rest
            return False
        letters = set(text)
        if not letters <= self.proven:
            self._prove(letters)
        return self.strange.isdisjoint(letters)

    def _prove(self, letters: set[str] | frozenset[str]) -> None:
        """Ask the library what it takes each character for, by what it leaves together with its like."""
        for letter in letters - self.proven - self.strange:
            if "\ud800" <= letter <= "\udfff":
                self.strange.add(letter)
                continue
            found = self._seen(letter)
            (self.proven if found == _kind(letter) else self.strange).add(letter)

    def _seen(self, letter: str) -> str:
        """What the library takes a character for."""
        if len(self.split(f"a{letter}")) == 1:
            return "L"
        if len(self.split(f"{letter}!")) == 1:
            return "O"
        return "S" if len(self.split(f"{letter}\n")) == 1 else "N"


ASCII = frozenset(map(chr, range(128)))
_BLANK = re.compile(f"[{BLANK}]")


def _kind(letter: str) -> str:
    """What a character is here: a letter, a number, white space (S) or anything else (O)."""
    if _BLANK.match(letter):
        return "S"
    kind = unicodedata.category(letter)[0] if ord(letter) < 0x10000 else "O"
    return kind if kind in "LN" else "O"

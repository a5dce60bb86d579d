"""Byte-level BPE by tiktoken, several times as fast, where its ids are proven to be the
`tokenizers` library's.

What is proven, once for a tokenizer and once for each character that turns up in its texts:

- *The same words.* Both engines split by one published pattern, which asks of a character only
  whether it is a letter, a number, white space or something else. Each character is tried in both;
  a text with one on which they differ, or that a normaliser may change, is left to the library.
- *The same merges.* The library joins the pairs of a list in its order; tiktoken joins any two
  neighbours that make an entry, the lowest id first. Where the list has one pair for each entry, in
  the order of ids, and every entry comes out whole when it is asked for alone, no other pair can
  ever make it: inside a word its letters go the same way as alone, until something joins across its
  ends. And a list of every cut of every entry, where whole words come first, is tiktoken's own rule
  written out; a tokenizer read from a file of ranks has nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .byte_bpe import WORDS
from .tokenizer_json import Spec, load
from .vocabulary import bytes_by_letter

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's, which the library knows by heart."""
KNOWN = frozenset({PATTERN, WORDS.format(digits="{1,3}"), WORDS.format(digits="")})
"""The patterns that ask for nothing but letters, numbers and white space."""
SPACES = r"|\s+(?!\S)|\s+"
"""How each of them ends. Looking ahead is slow; all before it, in a group of its own, is then one
fast automaton."""
FOLDED = ord("ſ")
"""Not an s, but equal to one where capitals do not matter: engines differ on it."""
PROVEN, STRANGE = 1, 2
BLOCK = 1024  # characters proven together
# proven whole for one text: 0.1 s; all of them take 12 s, and a text may have a character of each
BLOCKS = 8


class TiktokenBackend:
    """tiktoken with one tokenizer's entries; ``of`` makes one where its ids are provably the
    same."""

    def __init__(self, ranks: dict[bytes, int], pattern: str, spec: Spec) -> None:
        self.pattern = f"(?:{pattern.removesuffix(SPACES)}){SPACES}"
        self.encoding = _encoding(ranks, self.pattern)
        empty = {"type": "BPE", "vocab": {}, "merges": []}
        library = load(
            {"version": "1.0", "pre_tokenizer": spec["pre_tokenizer"], "model": empty},
            "The tokenizer",
        )
        self.split, self.composes = (
            library.pre_tokenizer.pre_tokenize_str,
            spec.get("normalizer") is not None,
        )
        self.known = np.zeros(0x110000, np.uint8)  # of each character
        self.known[[FOLDED, *range(0xD800, 0xE000)]] = STRANGE
        self._prove([chr(code) for code in range(128)])
        self.ascii = bool((self.known[:128] == PROVEN).all())

    @classmethod
    def of(cls, spec: Spec, library: tokenizers.Tokenizer | None) -> TiktokenBackend | None:
        """The backend of a tokenizer, None where nothing is proven.

        ``library`` is the tokenizer that finds no special token in a text; None where the merges go
        by rank.
        """
        pattern, normalizer = _pattern(spec), spec.get("normalizer") or {"type": "NFC"}
        ordinary = all(token["special"] for token in spec["added_tokens"])
        if pattern not in KNOWN or normalizer["type"] != "NFC" or not ordinary:
            return None
        ranks = _ranks(spec, library)
        return None if ranks is None else cls(ranks, pattern, spec)

    def encode(self, text: str) -> np.ndarray[Any, Any] | None:
        """The text's ids (uint32); None for a text that is left to the library."""
        if not self._readable(text):
            return None
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # its panics are not Exceptions
            return None

    def _readable(self, text: str) -> bool:
        """True where every character is proven to be the same to both engines."""
        if text.isascii() and self.ascii:
            return True
        if self.composes and not text.isascii():  # NFC changes no ASCII, and may change the rest
            return False
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        status = self.known[codes]
        if not status.all():
            # whole blocks: making the encoding that tries them takes longer than trying, and a
            # script comes in blocks
            new = np.unique(codes[status == 0])
            blocks, frequencies = np.unique(new // BLOCK, return_counts=True)
            near = (
                blocks[np.argsort(-frequencies)[:BLOCKS], None] * BLOCK + np.arange(BLOCK)
            ).ravel()
            new = np.union1d(new, near[self.known[near] == 0])
            for first in range(0, len(new), BLOCK):
                self._prove([chr(code) for code in new[first : first + BLOCK]])
            status = self.known[codes]
        return bool((status == PROVEN).all())

    def _prove(self, letters: Sequence[str]) -> None:
        """Try characters in both engines: which of their likes they stay together with."""
        probes = {probe.encode() for letter in letters for probe in _probes(letter).values()}
        tiny = _encoding(
            {**_SINGLE, **{probe: 256 + at for at, probe in enumerate(sorted(probes))}},
            self.pattern,
        )
        for letter in letters:
            library_kind = _kind(letter, lambda probe: len(self.split(probe)) == 1)
            tiktoken_kind = _kind(letter, lambda probe: len(tiny.encode_ordinary(probe)) == 1)
            self.known[ord(letter)] = PROVEN if library_kind == tiktoken_kind else STRANGE


_SINGLE = {bytes([byte]): byte for byte in range(256)}


def _probes(letter: str) -> dict[str, str]:
    """Texts that stay in one piece when the letter is a letter, something else than any class, or
    white space."""
    return {"letter": f"a{letter}", "other": f"{letter}!", "space": f"{letter}\n"}


def _kind(letter: str, is_single: Callable[[str], bool]) -> str:
    """Class of a character to an engine; ``is_single`` says whether the engine leaves a text in one
    piece."""
    return next((kind for kind, probe in _probes(letter).items() if is_single(probe)), "number")


def _encoding(ranks: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    import tiktoken

    # without any special token its search for them is slow
    unused = {"\0\uffff\0": max(ranks.values()) + 1}
    return tiktoken.Encoding(
        "glassformer", pat_str=pattern, mergeable_ranks=ranks, special_tokens=unused
    )


def _pattern(spec: Spec) -> str | None:
    """The pattern by which this tokenizer splits a text into words, if it does so and then goes by
    bytes."""
    before = spec.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers") if before.get("type") == "Sequence" else [before]
    *cuts, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True) or len(cuts) > 1:
        return None
    if not cuts:
        return PATTERN if last.get("use_regex", True) else None
    cut = cuts[0]
    regex: str | None = cut.get("pattern", {}).get("Regex") if cut.get("type") == "Split" else None
    plain = (
        cut.get("behavior") == "Isolated"
        and not cut.get("invert")
        and last.get("use_regex") is False
    )
    return regex if plain else None


def _ranks(spec: Spec, library: tokenizers.Tokenizer | None) -> dict[bytes, int] | None:
    """The bytes of each entry and its id, where tiktoken's merges are the library's; else None."""
    model, special = spec["model"], {token["content"] for token in spec["added_tokens"]}
    if (
        model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or model["type"] != "BPE"
    ):
        return None
    entries = {name: id for name, id in model["vocab"].items() if name not in special}
    bytes_of = bytes_by_letter()
    try:
        ranks = {bytes(map(bytes_of.__getitem__, name)): id for name, id in entries.items()}
        if library is None:
            return ranks
        merged_ids = [entries[prefix + right] for prefix, right in model["merges"]]
    except KeyError:
        return None
    in_order = all(first <= then for first, then in itertools.pairwise(merged_ids))
    if not in_order or not ranks.keys() >= _SINGLE.keys():
        return None
    if model.get("ignore_merges"):
        listed = {(prefix, right) for prefix, right in model["merges"]}
        cuts = sum(
            name[:at] in entries and name[at:] in entries
            for name in entries
            for at in range(1, len(name))
        )
        return ranks if len(listed) == len(merged_ids) == cuts else None
    return (
        ranks if len(set(merged_ids)) == len(merged_ids) and _come_whole(entries, library) else None
    )


def _come_whole(entries: dict[str, int], library: tokenizers.Tokenizer) -> bool:
    """True where every entry, encoded by the library's model alone, is itself."""
    import tokenizers

    names, bare = list(entries), tokenizers.Tokenizer(library.model)
    groups = [names[at : at + 4096] for at in range(0, len(names), 4096)]
    encodings = bare.encode_batch_fast(groups, is_pretokenized=True, add_special_tokens=False)
    return [id for encoding in encodings for id in encoding.ids] == list(entries.values())

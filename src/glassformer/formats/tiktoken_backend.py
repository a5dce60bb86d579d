"""Byte-level BPE by tiktoken, several times as fast, where its ids are proven to be the
`tokenizers` library's.

What is proven:

- *The same words*, once for each character that turns up. Both engines split by one published
  pattern, which asks of a character only whether it is a letter, a number or white space. A text
  with a character on which they differ, or that a normaliser may change, is left to the library.
- *The same merges*, once for a tokenizer. The library joins the pairs of a list in its order;
  tiktoken joins any two neighbours that make an entry, the lowest id first. Where the list has one
  pair for each entry, in the order of ids, and every entry comes out whole when it is asked for
  alone, no other pair can ever make it: inside a word its letters go the same way as alone, until
  something joins across its ends. And a list of every cut of every entry, where whole words come
  first, is tiktoken's own rule written out; a tokenizer read from a file of ranks has nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..core.tokenizer.detokenizer import bytes_by_letter
from ..core.tokenizer.tokenizer import LARGE, count_characters, worker
from ..core.tokenizer.tokenizer_json import Spec, merges_by_rank, steps
from ..fast.threads import cores

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of tiktoken's cl100k, Llama 3 and Qwen, which differ only in how many digits
go together."""
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's, which the library knows by heart."""
KNOWN = frozenset({PATTERN, WORDS.format(digits="{1,3}"), WORDS.format(digits="")})
"""The patterns that ask for nothing but letters, numbers and white space."""
SPACES = r"|\s+(?!\S)|\s+"
"""The end of each of them. Looking ahead is slow; all before it, in a group of its own, is then
one fast automaton."""
CLASSES = ((r"\p{L}", r"\P{L}"), (r"\p{N}", r"\P{N}"), (r"\s", r"\S"))
FOLDED = "ſ"
"""Not an s, but equal to one where capitals do not matter: engines differ on it."""
PROVEN, STRANGE = 1, 2
_single = {bytes([byte]): byte for byte in range(256)}
_status = np.zeros(0x110000, np.uint8)  # of each character; 0: not compared yet
_status[[ord(FOLDED), *range(0xD800, 0xE000)]] = STRANGE

Encoder: TypeAlias = Callable[[Sequence[str]], list[list[int]]]


class TiktokenBackend:
    """tiktoken with one tokenizer's entries; ``by_library`` encodes what is not proven equal."""

    def __init__(
        self, ranks: dict[bytes, int], pattern: str, composes: bool, by_library: Encoder
    ) -> None:
        self.encoding = _encoding(ranks, f"(?:{pattern.removesuffix(SPACES)}){SPACES}")
        self.composes, self.by_library = composes, by_library

    def encode_batch(self, texts: Sequence[str]) -> list[Any]:
        """The ids of each text; many characters are shared out over the cores."""
        if count_characters(texts) < LARGE:
            return self._encode_all(texts)
        workers = cores()
        size = -(-len(texts) // (4 * workers))
        groups = [texts[at : at + size] for at in range(0, len(texts), size)]
        with pool(workers) as threads:
            return [ids for group in threads.map(self._encode_all, groups) for ids in group]

    def _encode_all(self, texts: Sequence[str]) -> list[Any]:
        encoded = [self.encode(text) if isinstance(text, str) else None for text in texts]
        unproven = [text for text, ids in zip(texts, encoded, strict=True) if ids is None]
        fallback = iter(self.by_library(unproven) if unproven else ())
        return [next(fallback) if ids is None else ids for ids in encoded]

    def encode(self, text: str) -> np.ndarray[Any, Any] | None:
        """The text's ids (uint32); None for a text that is left to the library."""
        # NFC changes no ASCII, and may change other texts
        if not text.isascii() and (self.composes or not comparable(text)):
            return None
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # its panics are not Exceptions
            return None


def of(
    spec: Spec, library: tokenizers.Tokenizer | None, by_library: Encoder
) -> TiktokenBackend | None:
    """The backend of a tokenizer, None where nothing is proven.

    ``library`` is the tokenizer that finds no special token in a text; None where the merges go
    by rank.
    """
    pattern, normalizer = _pattern(spec), spec.get("normalizer")
    composes = normalizer == {"type": "NFC"}
    ordinary = all(token["special"] for token in spec["added_tokens"])
    if pattern not in KNOWN or not (composes or normalizer is None) or not ordinary:
        return None
    ranks = _ranks(spec, library)
    return None if ranks is None else TiktokenBackend(ranks, pattern, composes, by_library)


def comparable(text: str) -> bool:
    """True where both engines see the same letters, numbers and white space in a text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    status = _status[codes]
    if not status.all():
        new = np.unique(codes[status == 0])
        strange = strange_characters("".join(map(chr, new)))
        _status[new] = [STRANGE if chr(code) in strange else PROVEN for code in new]
        status = _status[codes]
    return bool((status == PROVEN).all())


def strange_characters(letters: str) -> set[str]:
    """The characters that are a letter, a number or white space to one engine alone."""
    strange: set[str] = set()
    for encoding, library in _engines():
        by_tiktoken = encoding.decode(encoding.encode_ordinary(letters))
        strange |= {*by_tiktoken} ^ {*library.normalize_str(letters)}
    return strange


@functools.cache
def _engines() -> list[tuple[tiktoken.Encoding, tokenizers.normalizers.Normalizer]]:
    """Pairs of filters, one of each engine, that keep the characters of a class alone."""
    from tokenizers import Regex, normalizers

    return [
        (_encoding(_single, inside), normalizers.Replace(Regex(outside), ""))
        for inside, outside in CLASSES
    ]


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
    *cuts, last = list(steps(spec.get("pre_tokenizer"))) or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    by_heart: bool = last.get("use_regex", True)
    if not cuts:
        return PATTERN if by_heart else None
    pattern: str | None = cuts[0].get("pattern", {}).get("Regex")
    isolates = {"type": "Split", "behavior": "Isolated", "invert": False}.items() <= cuts[0].items()
    return pattern if len(cuts) == 1 and isolates and not by_heart else None


def _ranks(spec: Spec, library: tokenizers.Tokenizer | None) -> dict[bytes, int] | None:
    """The bytes of each entry and its id, where tiktoken's merges are the library's; else None."""
    model = spec["model"]
    special = {token["content"] for token in spec["added_tokens"]}
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if affixed or model["type"] != "BPE":
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
    if not ranks.keys() >= _single.keys():
        return None
    if model.get("ignore_merges"):
        written_out = [list(pair) for pair in merges_by_rank(entries)] == model["merges"]
        return ranks if written_out else None
    rising = all(first < then for first, then in itertools.pairwise(merged_ids))
    tokenize = library.model.tokenize
    if rising and all(len(tokenize(name)) == 1 for name in entries):
        return ranks
    return None


@contextlib.contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that share work out; left by an exception (Ctrl-C), it waits for none of them."""
    abandoned = threading.Event()
    threads = ThreadPoolExecutor(
        workers, initializer=setattr, initargs=(worker, "abandoned", abandoned)
    )
    try:
        yield threads
    except BaseException:
        abandoned.set()
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()

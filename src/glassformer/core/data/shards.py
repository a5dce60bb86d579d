"""A tokenised corpus on the disk: memory-mapped, cached by content and tokenizer, made once.

tokens.bin   uint16 or uint32: documents end to end, [bos] document [eos]
starts.bin   int64: where each document starts, and where the last one ends
marks.bin    int64 pairs: tokens and text bytes before each piece of the corpus, and before the end
shards.json  what the three must be; written with them in one rename
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..errors import need
from ..tokenizer.framing import document_start
from ..tokenizer.tokenizer import Tokenizer
from . import tokenising
from .corpus import Source, cache_lock
from .tokenising import MAPPED, Progress

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _TokenizedCorpus:
    """A tokenised corpus, shared by its splits."""

    source: Source
    tokenizer: Tokenizer
    key: str
    marks: Array  # (pieces + 1, 2): tokens before, bytes before
    starts: Array
    maps: tuple[mmap.mmap, ...] = ()

    def bytes_before(self, token: int) -> int:
        """UTF-8 bytes of the text that the first ``token`` tokens stand for, exactly.

        A token that ends inside a character counts the whole character.
        """
        # searchsorted would copy the column
        piece = bisect.bisect_right(self.marks[:, 0], token) - 1
        first, before = map(int, self.marks[piece])
        inside = token - first
        if inside == 0:
            return before
        opens = self.starts[np.searchsorted(self.starts, first)] == first
        inside -= int(opens and document_start(self.tokenizer) is not None)
        *earlier, (text, _, _) = itertools.islice(
            self.source.pieces(), max(piece - 1, 0), piece + 1
        )
        continues = self.tokenizer.adds_prefix and bool(earlier) and not earlier[0].last
        spans = (
            self.tokenizer.encode_continuation(text)[1]
            if continues
            else self.tokenizer.offsets(text)
        )
        inner_spans = spans[:inside]
        return before + (len(text[: inner_spans[-1][1]].encode()) if inner_spans else 0)


@dataclass(frozen=True, eq=False)
class Shards:
    """Token ids of a corpus, or of a stretch of it.

    ``tokens`` (length) is a memory map; so is ``borders`` (documents - 1): the first token of each
    document but the first, counted from the corpus's beginning. ``starts`` (documents + 1) is a
    copy: every document's start in ``tokens``, and the end. ``shared_border``: the token that
    closes a document also opens the next, as GPT-2's ``<|endoftext|>`` does.
    """

    tokens: Array
    first: int  # where this stretch begins in the whole
    corpus: _TokenizedCorpus

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def borders(self) -> Array:
        low = np.searchsorted(self.corpus.starts, self.first, side="right")
        high = np.searchsorted(self.corpus.starts, self.first + len(self), side="left")
        return self.corpus.starts[low:high]

    @property
    def starts(self) -> Array:
        return np.concatenate([[0], self.borders - self.first, [len(self)]])

    @property
    def documents(self) -> int:
        """Number of documents; a document cut by a split counts as one."""
        return len(self.borders) + 1

    @property
    def name(self) -> str:
        """The corpus's name."""
        return self.corpus.source.name

    @property
    def key(self) -> str:
        """Says which corpus, tokenizer and stretch this is."""
        return f"{self.corpus.key}:{self.first}:{len(self)}"

    @property
    def shared_border(self) -> bool:
        tokenizer = self.corpus.tokenizer
        return tokenizer.eos is not None and document_start(tokenizer) is None

    @functools.cached_property
    def bytes(self) -> int:
        """UTF-8 bytes of the text, exactly; reads the corpus again when a document was split."""
        self.check()
        end = self.first + len(self)
        return self.corpus.bytes_before(end) - self.corpus.bytes_before(self.first)

    def split(self, valid: float = 0.1) -> tuple[Shards, Shards]:
        """(train, valid): the last ``valid`` share of the tokens, as nanoGPT splits.

        Parts at the document border next to that place, or inside a document when no border is
        near. Raises UserError when one side would be empty.
        """
        need(
            0 < valid < 1,
            f"The validation share is {valid}; give one between 0 and 1, such as 0.1.",
        )
        # 0.9 of a length is not to lose a token to rounding
        cut = int(len(self) * (1 - valid) + 1e-6)
        cut = self._border(cut, 0.5 * min(valid, 1 - valid) * len(self))
        need(
            0 < cut < len(self),
            f"{self.name} is too short to set {valid:.0%} of it aside; give more text.",
        )
        return self._stretch(0, cut), self._stretch(cut, len(self))

    def spread(self, valid: float, count: int) -> list[tuple[Shards, Shards]]:
        """``split`` of each of ``count`` stretches of about the same length: what is held out is
        like all of the text.

        A stretch begins at the document border next to its place, where one is near.
        """
        size = len(self) // count
        cuts = [
            0,
            *(self._border(size * number, size // 4) for number in range(1, count)),
            len(self),
        ]
        return [self._stretch(a, b).split(valid) for a, b in itertools.pairwise(cuts)]

    def _border(self, place: int, near: float) -> int:
        """The document border next to ``place``, if it is at most ``near`` tokens away; else the
        place itself."""
        at = int(np.searchsorted(self.borders, self.first + place))
        close = [
            0,
            *(int(border) - self.first for border in self.borders[max(at - 1, 0) : at + 1]),
            len(self),
        ]
        border = min(close, key=lambda start: abs(start - place))
        return border if abs(border - place) <= near else place

    def check(self) -> None:
        """UserError where a file behind this was cut: to read it there would end the process
        (SIGBUS)."""
        need(
            all(mapped.size() >= len(mapped) for mapped in self.corpus.maps),
            f"The tokenised copy of {self.name} was cut while in use; start again, it is "
            "made anew.",
        )

    def _stretch(self, start: int, end: int) -> Shards:
        return Shards(self.tokens[start:end], self.first + start, self.corpus)


def tokenise(
    source: Source,
    tokenizer: Tokenizer,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Shards:
    """The corpus as shards, from the cache when this content was tokenised with this tokenizer
    before.

    ``cache`` is a folder (by default below ``files.cache_home()``), ``workers`` a number of
    threads, ``processes`` of processes instead (0: threads; None: ``$GLASSFORMER_PROCESSES``, or
    0). Stopped, and asked for again, it goes on. Raises UserError for an empty corpus, a full disk
    and whatever ``source`` finds wrong with its files.
    """
    content = (
        f"{tokenising.FORMAT} {source.digest()} {tokenizer.fingerprint} {tokenizer.bos} "
        f"{tokenizer.eos}"
    )
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    folder = (cache or files.cache_home() / "shards") / key
    with cache_lock(folder):
        if not _sound(folder):
            tokenising.make(folder, source, tokenizer, workers, processes, progress)
        if progress:
            progress(source.size, source.size)
        return shards_under(key, source, tokenizer, cache)


def shards_under(
    key: str, source: Source, tokenizer: Tokenizer, cache: Path | None = None
) -> Shards:
    """The shards that ``tokenise`` has just left in the cache under this key, without looking
    through them again."""
    folder = (cache or files.cache_home() / "shards") / key
    record = json.loads((folder / "shards.json").read_text())
    tokens, starts, marks = (
        np.memmap(folder / name, dtype, mode="r")
        for name, dtype in zip(MAPPED, (record["dtype"], "int64", "int64"), strict=True)
    )
    maps: list[Any] = [tokens, starts, marks]
    pairs = np.asarray(marks).reshape(-1, 2)
    opened = tuple(memmap._mmap for memmap in maps)
    corpus = _TokenizedCorpus(source, tokenizer, key, pairs, np.asarray(starts), opened)
    return Shards(tokens, 0, corpus)


def _sound(folder: Path) -> bool:
    """True where the cache entry exists and its files match their hashes."""
    try:
        record = json.loads((folder / "shards.json").read_text())
        return all(files.sha256(folder / name) == record["sha256"][name] for name in MAPPED)
    except (OSError, ValueError, KeyError, TypeError):
        return False

"""A tokenised corpus on the disk: memory-mapped, cached by content and tokenizer, made once.

tokens.bin   uint16 or uint32: documents end to end, [bos] document [eos]
starts.bin   int64: where each document starts, and where the last one ends
marks.bin    int64 pairs: tokens and text bytes before each piece of the corpus, and before the end
shards.json  what the three must be; written with them in one rename
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError, need
from ..tokenizer.framing import document_start

Array = np.ndarray[Any, Any]


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
    corpus: Any  # formats.data.tokenising.TokenizedCorpus

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def borders(self) -> Array:
        low = np.searchsorted(self.corpus.starts, self.first, side="right")
        high = np.searchsorted(self.corpus.starts, self.first + len(self), side="left")
        borders: Array = self.corpus.starts[low:high]
        return borders

    @property
    def starts(self) -> Array:
        return np.concatenate([[0], self.borders - self.first, [len(self)]])

    @property
    def documents(self) -> int:
        """Number of documents; a document cut by a split counts as one."""
        return len(self.borders) + 1

    @property
    def name(self) -> str:
        return str(self.corpus.source.name)

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
        size: int = self.corpus.bytes_before(end) - self.corpus.bytes_before(self.first)
        return size

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
        """``split`` of each of ``count`` stretches: what is held out is like all of the text.

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
        """The document border next to ``place`` if it is at most ``near`` away, else the place."""
        at = int(np.searchsorted(self.borders, self.first + place))
        close = [
            0,
            *(int(border) - self.first for border in self.borders[max(at - 1, 0) : at + 1]),
            len(self),
        ]
        border = min(close, key=lambda start: abs(start - place))
        return border if abs(border - place) <= near else place

    def check(self) -> None:
        """UserError where a file behind this was cut: reading it would end the process (SIGBUS)."""
        if any(mapped.size() < len(mapped) for mapped in self.corpus.maps):
            raise UserError(
                f"The tokenised copy of {self.name} was cut while in use; start again, it is "
                "made anew."
            )

    def _stretch(self, start: int, end: int) -> Shards:
        return Shards(self.tokens[start:end], self.first + start, self.corpus)

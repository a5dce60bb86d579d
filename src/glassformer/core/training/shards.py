"""A tokenised corpus on the disk: memory-mapped, cached by content and tokenizer, made once.

tokens.bin   uint16 or uint32: documents end to end, [bos] document [eos]
starts.bin   int64: where each document starts, and where the last one ends
marks.bin    int64 pairs: tokens and text bytes before each piece of the corpus, and before the end
shards.json  what the three must be; written with them in one rename
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError
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

    def check(self) -> None:
        """UserError where a file behind this was cut: reading it would end the process (SIGBUS)."""
        if any(mapped.size() < len(mapped) for mapped in self.corpus.maps):
            raise UserError(
                f"The tokenised copy of {self.name} was truncated while in use; start again to "
                "rebuild it."
            )

    def stretch(self, start: int, end: int) -> Shards:
        """The tokens from ``start`` to before ``end``."""
        return Shards(self.tokens[start:end], self.first + start, self.corpus)

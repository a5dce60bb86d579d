"""From tokens to text that may be shown: whole characters, and nothing that might begin a stop
string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tokenizer.vocabulary import Stream


class Writer:
    """One row's text as it grows; ``stopped_by`` is the stop string that has been completed.

    What comes out never contains a stop string, nor the start of one that later tokens complete.
    The first stop string to be complete wins, so the text does not depend on where the tokens'
    borders lie.
    """

    def __init__(
        self, stream: Stream, context: Iterable[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.stream, self.stops = stream, stops
        self.pending = ""
        self.stopped_by: str | None = None
        # the text goes on from here: the space between two words belongs to what follows
        for token in context:
            stream.push(token)

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def push(self, token: int) -> str:
        """The text that may be shown after this token, often one token's, sometimes none or
        more."""
        return self._show(self.stream.push(token))

    def close(self) -> str:
        """Releases the text that could still have become a stop string, when no token follows."""
        if self.stopped:
            return ""
        text = self._show(self.stream.flush())
        tail, self.pending = self.pending, ""
        return text + tail

    def _show(self, new: str) -> str:
        text = self.pending + new
        matches = [
            (at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0
        ]
        if matches:
            _, at, self.stopped_by = min(matches)
            self.pending = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` with which ``stop`` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)

"""One continuation as it grows: tokens come in, text goes out, until a reason ends it.

Text is shown in whole characters, and nothing is shown that might begin a stop string.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer
    from ..tokenizer.vocabulary import Stream

Finish: TypeAlias = Literal["eos", "stop", "length", "context"]


class Continuation:
    """Tokens that follow ``start``, and why they ended: at a token of ``eos``, at a string of
    ``stops``, or after ``max_tokens`` by the reason ``limit``.

    ``tokens`` hold the eos or the stop string's that ended it (``stopped_by``), too; text leaves
    those out.
    """

    def __init__(
        self,
        start: Sequence[int],
        eos: frozenset[int],
        max_tokens: int,
        limit: Finish,
        tokenizer: Tokenizer | None,
        stops: Sequence[str],
    ) -> None:
        self.start, self.eos, self.max_tokens, self.limit = start, eos, max_tokens, limit
        self.tokenizer, self.stops = tokenizer, stops
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.stopped_by: str | int | None = None

    @cached_property
    def writer(self) -> Writer | None:
        """Text as it grows, made with the first token: whoever asks for it does not wait."""
        if self.tokenizer is None:
            return None
        # the last few tell that the text goes on, and how an unfinished character (4 bytes at most)
        # begins
        return Writer(self.tokenizer.stream(), self.start[-16:], self.stops)

    def append(self, token: int) -> str:
        """The text that may be shown after one more token; ``finish`` is set when it was the
        last."""
        self.tokens.append(token)
        text = ""
        if token in self.eos:
            self.finish, self.stopped_by = "eos", token
        elif self.writer is not None:
            text = self.writer.push(token)
        if self.finish is None and len(self.tokens) >= self.max_tokens:
            self.finish = self.limit
        if self.writer is not None:
            text += self.writer.close() if self.finish else ""
            if self.writer.stopped:
                self.finish, self.stopped_by = "stop", self.writer.stopped_by
        return text


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

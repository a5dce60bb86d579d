"""One continuation as it grows: tokens come in, text goes out, until a reason ends it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from .stop_strings import Writer

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

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

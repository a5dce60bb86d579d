"""Tokens with their log-probabilities, as a response names them once their text is complete."""

from __future__ import annotations

from collections import deque

from ..core.generation.sample import Likely
from ..core.tokenizer import Tokenizer
from .engine import Event


class ScoredToken:
    """Token with its log-probability, top candidates and bytes (none for a special token).

    The ``first`` of a text may have other bytes than in the middle (SentencePiece spaces). JSON
    lacks minus infinity, for which OpenAI writes -9999.
    """

    def __init__(
        self, tokenizer: Tokenizer, token: int, logprob: float | None, top: Likely, first: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.token = token
        self.top = top
        self.first = first
        self.logprob = None if logprob is None else max(logprob, -9999.0)
        self.hidden = tokenizer.hides(token)
        self.raw = b"" if self.hidden else tokenizer.bytes_of(token, first)

    @property
    def text(self) -> str:
        """Token as text; incomplete UTF-8 as ``bytes:\\x..``, as OpenAI writes it."""
        if self.hidden:
            return self.tokenizer.token(self.token)
        try:
            return self.raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.raw)

    def candidates(self, count: int) -> list[ScoredToken]:
        """Top candidates in the token's place; the token itself keeps its own log-probability."""
        return [
            self
            if token == self.token
            else ScoredToken(self.tokenizer, token, logprob, (), self.first)
            for token, logprob in self.top[:count]
        ]


class TokenBuffer:
    """Tokens of one continuation, buffered until their text is emitted."""

    def __init__(self, tokenizer: Tokenizer, has_text: bool) -> None:
        self.tokenizer = tokenizer
        self.has_text = has_text
        self.pending: deque[tuple[int, int, ScoredToken]] = deque()  # where its bytes begin and end
        self.decoded_bytes = self.shown_bytes = 0

    def push(self, event: Event) -> list[ScoredToken]:
        """Adds an event and returns the tokens whose text is complete with it."""
        if event.token is not None:
            first = not self.has_text
            scored = ScoredToken(self.tokenizer, event.token, event.logprob, event.top, first)
            self.has_text = self.has_text or not scored.hidden
            start = self.decoded_bytes
            self.decoded_bytes += len(scored.raw)
            self.pending.append((start, self.decoded_bytes, scored))
        self.shown_bytes += len(event.text.encode("utf-8", "replace"))
        ready = list[ScoredToken]()
        is_cut = isinstance(event.stopped_by, str)
        while self.pending:
            start, end, scored = self.pending[0]
            is_shown = end <= self.shown_bytes and not (is_cut and start == end)
            is_last = event.finish_reason is not None and (start < self.shown_bytes or not is_cut)
            if not is_shown and not is_last:
                break
            ready.append(scored)
            self.pending.popleft()
        return ready

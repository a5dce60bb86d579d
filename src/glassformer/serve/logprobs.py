"""Tokens as text beside their log-probabilities, in the two forms of OpenAI's API.

A token is told when its text is: what a stop string cuts off is never told, neither as text nor as
a token.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from typing_extensions import TypedDict

from ..core.tokenizer import Tokenizer
from .engine import Event

TopTokens = Sequence[tuple[int, float]]


class CompletionLogprobs(TypedDict):
    """Parallel lists with one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TopLogprob(TypedDict):
    """Candidate token at a position; ``bytes`` are null for a special token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """Sampled token with the top candidates at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of one message."""

    content: list[TokenLogprob]


@dataclass(frozen=True)
class ScoredToken:
    """Token with its log-probability, top candidates and bytes (none for a special token)."""

    token: int
    logprob: float | None
    top: TopTokens
    raw: bytes
    hidden: bool
    first: bool  # nothing was written before it


def floor_logprob(logprob: float | None) -> float | None:
    """Clamps minus infinity, which JSON lacks, to -9999 as OpenAI does."""
    return None if logprob is None else max(logprob, -9999.0)


class TokenDecoder:
    """Decodes tokens one by one; the first of a text may have other bytes than in the middle
    (SentencePiece spaces)."""

    def __init__(self, tokenizer: Tokenizer, has_text: bool) -> None:
        self.tokenizer, self.has_text = tokenizer, has_text

    def push(self, token: int, logprob: float | None, top: TopTokens) -> ScoredToken:
        hidden, first = self.tokenizer.hides(token), not self.has_text
        raw = b"" if hidden else self.tokenizer.bytes_of(token, first)
        self.has_text = self.has_text or not hidden
        return ScoredToken(token, floor_logprob(logprob), top, raw, hidden, first)


class TokenBuffer:
    """Tokens of one continuation, buffered until their text is emitted."""

    def __init__(self, tokenizer: Tokenizer, has_text: bool) -> None:
        self.decoder = TokenDecoder(tokenizer, has_text)
        self.pending: deque[tuple[int, int, ScoredToken]] = deque()  # where its bytes begin and end
        self.decoded_bytes = self.shown_bytes = 0

    def push(self, event: Event) -> list[ScoredToken]:
        """Adds an event and returns the tokens whose text is complete with it."""
        if event.token is not None:
            scored = self.decoder.push(event.token, event.logprob, event.top)
            self.pending.append((self.decoded_bytes, self.decoded_bytes + len(scored.raw), scored))
            self.decoded_bytes += len(scored.raw)
        self.shown_bytes += len(event.text.encode("utf-8", "replace"))
        ready = list[ScoredToken]()
        is_cut = isinstance(event.stopped_by, str)
        while self.pending:
            start, end, scored = self.pending[0]
            is_shown = end <= self.shown_bytes and not (is_cut and start == end)
            is_last = event.finish_reason is not None and (
                start < self.shown_bytes if is_cut else True
            )
            if not is_shown and not is_last:
                break
            ready.append(scored)
            self.pending.popleft()
        return ready


def token_text(tokenizer: Tokenizer, token: ScoredToken) -> str:
    """Token as text; incomplete UTF-8 as ``bytes:\\x..``, as OpenAI writes it."""
    if token.hidden:
        return tokenizer.token(token.token)
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)


def _top_tokens(tokenizer: Tokenizer, scored: ScoredToken) -> Iterable[ScoredToken]:
    """Top candidates at a token's position; the token itself keeps its own log-probability."""
    for token, logprob in scored.top:
        own_logprob = scored.logprob if token == scored.token else logprob
        yield TokenDecoder(tokenizer, not scored.first).push(token, own_logprob, ())


class CompletionLogprobsWriter:
    """Builds the log-probability lists of a completion in increments; ``offset`` is the character
    position."""

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self.tokenizer, self.top, self.offset = tokenizer, top, 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Sequence[ScoredToken]) -> CompletionLogprobs:
        """Lists of the next tokens."""
        offsets, tops = list[int](), list[dict[str, float] | None]()
        for scored in tokens:
            offsets.append(self.offset)
            self.offset += len(self.decoder.decode(scored.raw))
            by_text: dict[str, float] = {}
            # OpenAI names the token itself too
            for likely in (*[*_top_tokens(self.tokenizer, scored)][: self.top], scored):
                by_text.setdefault(token_text(self.tokenizer, likely), likely.logprob or 0.0)
            tops.append(None if scored.logprob is None else by_text)
        return {
            "tokens": [token_text(self.tokenizer, scored) for scored in tokens],
            "token_logprobs": [scored.logprob for scored in tokens],
            "top_logprobs": tops if self.top else None,
            "text_offset": offsets,
        }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[ScoredToken], top: int) -> ChatLogprobs:
    """Log-probabilities of a message's tokens."""

    def entry(scored: ScoredToken) -> TopLogprob:
        raw = None if scored.hidden else list(scored.raw)
        return {
            "token": token_text(tokenizer, scored),
            "logprob": scored.logprob or 0.0,
            "bytes": raw,
        }

    content = list[TokenLogprob]()
    for scored in tokens:
        content.append(
            {
                **entry(scored),
                "top_logprobs": [entry(likely) for likely in _top_tokens(tokenizer, scored)][:top],
            }
        )
    return {"content": content}

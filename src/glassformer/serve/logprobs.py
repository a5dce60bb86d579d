"""Tokens as text beside their log-probabilities, in the two forms of OpenAI's API.

A token is told when its text is: what a stop string cuts off is never told, neither as text nor as
a token.
"""

from __future__ import annotations

import codecs
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from typing_extensions import TypedDict

from ..engine import Event
from ..tokenizer import Tokenizer

Likely = Sequence[tuple[int, float]]


class CompletionLogprobs(TypedDict):
    """Lists side by side, an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TopLogprob(TypedDict):
    """A token in some place; ``bytes`` are null for a special token, which writes none."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token that was chosen, and the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Those of one message."""

    content: list[TokenLogprob]


@dataclass(frozen=True)
class Told:
    """One token with the bytes that it writes (none for a special one)."""

    token: int
    logprob: float | None
    top: Likely
    raw: bytes
    hidden: bool
    first: bool  # nothing was written before it


def floor(logprob: float | None) -> float | None:
    """JSON knows no minus infinity; OpenAI writes -9999."""
    return None if logprob is None else max(logprob, -9999.0)


class Pieces:
    """The bytes of one token after another; the first of a text may be written otherwise than in
    its middle."""

    def __init__(self, tokenizer: Tokenizer, begun: bool) -> None:
        self.tokenizer, self.begun = tokenizer, begun

    def push(self, token: int, logprob: float | None, top: Likely) -> Told:
        """The next token."""
        hidden, first = self.tokenizer.hides(token), not self.begun
        raw = b"" if hidden else self.tokenizer.bytes_of(token, first)
        self.begun = self.begun or not hidden
        return Told(token, floor(logprob), top, raw, hidden, first)


class Shown:
    """The tokens of one continuation, held back until their text is shown."""

    def __init__(self, tokenizer: Tokenizer, begun: bool) -> None:
        self.pieces = Pieces(tokenizer, begun)
        self.waiting: deque[tuple[int, int, Told]] = deque()  # where its bytes begin and end
        self.made = self.shown = 0

    def push(self, event: Event) -> list[Told]:
        """The tokens whose text is whole with this event's."""
        if event.token is not None:
            told = self.pieces.push(event.token, event.logprob, event.top)
            self.waiting.append((self.made, self.made + len(told.raw), told))
            self.made += len(told.raw)
        self.shown += len(event.text.encode("utf-8", "replace"))
        found = list[Told]()
        cut = isinstance(event.stopped_by, str)
        while self.waiting:
            begin, end, told = self.waiting[0]
            whole = end <= self.shown and not (cut and begin == end)
            last = event.finish_reason is not None and (begin < self.shown if cut else True)
            if not whole and not last:
                break
            found.append(told)
            self.waiting.popleft()
        return found


def piece(tokenizer: Tokenizer, told: Told) -> str:
    """A token as text; bytes that are no text by themselves as OpenAI writes them."""
    if told.hidden:
        return tokenizer.token(told.token)
    try:
        return told.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in told.raw)


def _likely(tokenizer: Tokenizer, told: Told) -> Iterable[Told]:
    """The likeliest in a token's place; the token itself has one number wherever it stands."""
    for token, logprob in told.top:
        own = told.logprob if token == told.token else logprob
        yield Pieces(tokenizer, not told.first).push(token, own, ())


class CompletionForm:
    """Makes the lists of a completion, part by part; ``offset`` counts the characters told so
    far."""

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self.tokenizer, self.top, self.offset = tokenizer, top, 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def part(self, told: Sequence[Told]) -> CompletionLogprobs:
        """The lists of some more tokens."""
        offsets, tops = list[int](), list[dict[str, float] | None]()
        for one in told:
            offsets.append(self.offset)
            self.offset += len(self.decoder.decode(one.raw))
            named: dict[str, float] = {}
            # OpenAI names the token itself too
            for likely in (*[*_likely(self.tokenizer, one)][: self.top], one):
                named.setdefault(piece(self.tokenizer, likely), likely.logprob or 0.0)
            tops.append(None if one.logprob is None else named)
        return {
            "tokens": [piece(self.tokenizer, one) for one in told],
            "token_logprobs": [one.logprob for one in told],
            "top_logprobs": tops if self.top else None,
            "text_offset": offsets,
        }


def chat_logprobs(tokenizer: Tokenizer, told: Sequence[Told], top: int) -> ChatLogprobs:
    """The list of a message's tokens."""

    def entry(one: Told) -> TopLogprob:
        raw = None if one.hidden else list(one.raw)
        return {"token": piece(tokenizer, one), "logprob": one.logprob or 0.0, "bytes": raw}

    content = list[TokenLogprob]()
    for one in told:
        content.append(
            {
                **entry(one),
                "top_logprobs": [entry(likely) for likely in _likely(tokenizer, one)][:top],
            }
        )
    return {"content": content}


def as_json(value: object) -> str:
    """JSON in one line; what is not finite cannot be in it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

"""The loop of generation: prompt -> model(cache) -> logits[-1] -> sampler -> token -> yield -> back in.

A continuation takes tokens in and gives text out, in whole characters, until a reason ends it.

B rows that still grow, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from ..nn.finite import must_be_finite
from .sample import Sampling, choose, likeliest, log_probability, token_mask
from .session import Session, closing_ranks, uniform_numbers

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer
    from ..tokenizer.vocabulary import Stream

Finish: TypeAlias = Literal["eos", "stop", "length", "context"]
# the likeliest tokens in one place, each with its log-probability
Likely: TypeAlias = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Step:
    """One more token of one row.

    ``text`` is what may be shown now: empty while a character is incomplete or a stop string may
    have begun. ``logprob`` is the natural logarithm of the model's own probability of the token,
    before penalty, temperature and cuts; ``likely`` are the likeliest tokens in its place with
    theirs, as many as were asked for. ``row`` counts prompts, each with its samples; ``index``
    counts tokens in the row, from 0; ``finish`` is set on a row's last step.
    """

    token: int
    text: str
    logprob: float
    index: int
    row: int
    finish: str | None = None
    likely: Likely = ()


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
        """The text that may be shown after one more token; ``finish`` is set with the last."""
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
        """The text that may be shown after this token: often one token's, or none, or more."""
        return self._show(self.stream.push(token))

    def close(self) -> str:
        """Releases the text that could still have become a stop string, when no token follows."""
        if self.stopped:
            return ""
        text = self._show(self.stream.flush())
        tail, self.pending = self.pending, ""
        return text + tail

    def _show(self, new: str) -> str:
        if not self.stops:
            return new
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


class Row(Continuation):
    """One continuation of a batch, the ``number``-th of its rows.

    ``prompt`` is what the user gave and ``start`` what the decoder begins with: the same, but for
    an encoder-decoder. ``logprobs`` and ``likely`` belong to its ``tokens``.
    """

    def __init__(self, number: int, prompt: list[int], start: list[int], **settings: Any) -> None:
        super().__init__(start, **settings)
        self.number, self.prompt, self.text = number, prompt, ""
        self.logprobs: list[float] = []
        self.likely: list[Likely] = []
        self.window_start = 0  # tokens from the beginning that a sliding context has left behind

    def window(self, context: int) -> list[int]:
        """Tokens of the row that the model reads: all, or its last half context when it is full."""
        ids = [*self.start, *self.tokens]
        if self.full(context):
            self.window_start = len(ids) - max(1, context // 2)
        return ids[self.window_start :]

    def full(self, context: int) -> bool:
        """True where one more token would not fit the context."""
        return len(self.start) + len(self.tokens) - self.window_start > context

    def add(self, token: int, logprob: float, likely: Likely = ()) -> Step:
        """Take one more token; the row's ``finish`` is set when it was the last."""
        text = self.append(token)
        self.logprobs.append(logprob)
        if likely:
            self.likely.append(likely)
        self.text += text
        index = len(self.tokens) - 1
        return Step(token, text, logprob, index, self.number, self.finish, likely)


def steps(
    session: Session,
    sources: Sequence[Sequence[int]] | None,
    rows: list[Row],
    samples: int,
    sampling: Sampling,
    seed: int,
    slide: bool,
    vocab_size: int | None,
    likely: int,
) -> Iterator[Step]:
    """One prefill for all prompts, then a token a row; a row that has ended leaves the batch."""
    model, context = session.model, session.model.config.context
    logits = session.prefill([row.window(context) for row in rows][::samples], sources, samples)
    longest = max(row.max_tokens for row in rows)
    uniform = None if sampling.greedy else uniform_numbers(rows, seed, longest).to(logits.device)
    mask = None
    if sampling.repetition_penalty != 1:
        mask = token_mask([row.start for row in rows], logits)
    for index in range(longest):
        random_numbers = None if uniform is None else uniform[:, index]
        tokens = choose(logits, random_numbers, mask, sampling, vocab_size)
        # one transfer to the host; ids are whole in fp32 up to 16 million
        chosen = torch.stack((tokens.float(), log_probability(logits, tokens)), 1).tolist()
        if any(math.isnan(logprob) for _, logprob in chosen):
            must_be_finite(model, logits)
        best = likeliest(logits, vocab_size, likely) if likely else [()] * len(rows)
        for place in sorted(range(len(rows)), key=lambda place: rows[place].number):
            token, logprob = chosen[place]
            yield rows[place].add(int(token), logprob, best[place])
        stay = closing_ranks([row.finish is None for row in rows])
        if not stay:
            return
        if mask is not None:
            mask.scatter_(1, tokens[:, None], True)
        if len(stay) < len(rows):
            rows, keep = [rows[place] for place in stay], torch.tensor(stay, device=tokens.device)
            session.select(stay)
            tokens = tokens[keep]
            uniform = uniform[keep] if uniform is not None else None
            mask = mask[keep] if mask is not None else None
        if index == 0:  # not before: the first token is waited for
            session.prepare(longest * len(rows), steps=longest - 1)
        if slide and any(row.full(context) for row in rows):
            session = Session(model)
            logits = session.prefill([row.window(context) for row in rows], None, 1)
        else:
            logits = session.decode(tokens)

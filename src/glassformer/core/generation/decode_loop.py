"""The loop of generation: prompt -> model(cache) -> logits[-1] -> sampler -> token -> yield -> back in.

B rows that still grow, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..nn.finite import must_be_finite
from ..tokenizer.detokenizer import Continuation
from .sample import Likely, Sampling, choose, likeliest, log_probability, token_mask
from .session import Session, closing_ranks, uniform_numbers


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

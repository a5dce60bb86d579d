"""One continuation of a request as it grows, and how its next token is drawn from logits.

    logits -> logit bias -> presence, frequency -> guide -> generation's choose (repetition,
    temperature, cuts, draw)

R rows that draw now, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..generation.loop import Likely
from ..generation.sample import Sampling, choose, likeliest, log_probability
from ..generation.stop_strings import Writer
from .draft import PromptLookup
from .request import Event, FinishReason, Guide, Handle, Request

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

AHEAD = 32  # uniform numbers drawn at once


class Continuation:
    """What was generated after the prompt: ``tokens`` and why it ended, with all that decides the
    next one.

    Its luck is made of the request's seed, the prompt and its index, and counts the tokens: what
    else the engine does at the time changes nothing. ``room`` is the most tokens that fit. What
    takes time is made when it is first needed, in the engine's thread: whoever submits a request
    does not wait for it.
    """

    def __init__(
        self,
        handle: Handle,
        index: int,
        room: int,
        ends: frozenset[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        request = handle.request
        assert isinstance(request, Request)
        self.handle, self.request, self.index, self.room, self.ends = (
            handle,
            request,
            index,
            room,
            ends,
        )
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.finish: FinishReason | None = None
        self.counts: Counter[int] = Counter()
        self.lookup: PromptLookup | None = None
        self._uniform: list[float] = []

    @cached_property
    def writer(self) -> Writer | None:
        """Its text as it may be shown."""
        if self.tokenizer is None:
            return None
        # the last few tell that the text goes on, and how an unfinished character (4 bytes at most)
        # begins
        return Writer(self.tokenizer.stream(), self.request.tokens[-16:], tuple(self.request.stop))

    @cached_property
    def guide(self) -> Guide | None:
        """What may follow."""
        return self.request.guide() if self.request.guide is not None else None

    @cached_property
    def _luck(self) -> torch.Generator:
        request = self.request
        read = tuple(request.tokens if request.source is None else request.source)
        # as generation/loop.py makes it, and so the same tokens
        name = f"{self.handle.seed} {request.first + self.index} {read}".encode()
        return torch.Generator().manual_seed(
            int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1
        )

    def uniform(self, place: int) -> float:
        """The number in [0, 1) that draws the token in this place."""
        while len(self._uniform) <= place:
            self._uniform += torch.rand(AHEAD, generator=self._luck).tolist()
        return self._uniform[place]

    def adjusted(self, logits: Tensor) -> Tensor:
        """One row of logits (V,) as bias, penalties and guide change it; the same tensor where
        nothing is asked."""
        request = self.request
        if request.logit_bias:
            logits = logits.clone()
            for token, bias in request.logit_bias.items():
                logits[token] += bias
        if self.counts and (request.presence_penalty or request.frequency_penalty):
            logits, ids = logits.clone(), torch.tensor([*self.counts], device=logits.device)
            often = torch.tensor([*self.counts.values()], device=logits.device)
            logits[ids] -= request.presence_penalty + request.frequency_penalty * often
        allowed = self.guide(self.tokens) if self.guide is not None else None
        if allowed is not None:
            barred = torch.ones_like(logits, dtype=torch.bool)
            barred[: len(allowed)] = ~allowed.to(logits.device)[: len(logits)]
            logits = logits.masked_fill(barred, -math.inf)
        return logits

    def add(self, token: int, logprob: float, top: Likely) -> Event:
        """Take one more token; ``finish`` is set when it was the last."""
        self.tokens.append(token)
        self.counts[token] += 1
        text = ""
        by: str | int | None = None
        if token in self.ends:
            self.finish, by = "stop", token
        elif self.writer is not None:
            text = self.writer.push(token)
        if self.finish is None and len(self.tokens) >= self.room:
            self.finish = "length"
        if self.writer is not None:
            text += self.writer.close() if self.finish else ""
            if self.writer.stopped_by is not None:
                self.finish, by = "stop", self.writer.stopped_by
        return Event(self.index, token, text, logprob, top, self.finish, by)

    def end(self, reason: FinishReason) -> Event:
        """It ends without another token."""
        self.finish = reason
        return Event(
            self.index, text=self.writer.close() if self.writer else "", finish_reason=reason
        )


def draw(
    rows: Sequence[Continuation], logits: Tensor, adjusted: Tensor, known: int | None
) -> list[tuple[int, float, Likely]]:
    """Each row's next token with its log-probability and the likeliest in its place, from fp32
    logits (R, V)."""
    tokens = drawn(rows, adjusted, known)
    logprobs = log_probability(logits, tokens).tolist()
    most = max((row.request.logprobs or 0 for row in rows), default=0)
    top = likeliest(logits, known, most) if most else [[] for _ in rows]
    cut = [tuple(best[: row.request.logprobs or 0]) for row, best in zip(rows, top, strict=True)]
    return list(zip(tokens.tolist(), logprobs, cut, strict=True))


def drawn(
    rows: Sequence[Continuation], logits: Tensor, known: int | None, ahead: int = 0
) -> Tensor:
    """The token (R,) that each row's luck takes from logits (R, V), ``ahead`` places after its next
    one.

    Only the first ``known`` ids are drawn; rows of the same Sampling are drawn together.
    """
    tokens = torch.zeros(len(rows), dtype=torch.long, device=logits.device)
    groups: dict[Sampling, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.request.sampling, []).append(place)
    for how, places in groups.items():
        some = [rows[place] for place in places]
        index = torch.tensor(places, device=logits.device)
        luck = (
            None
            if how.greedy
            else torch.tensor([row.uniform(len(row.tokens) + ahead) for row in some])
        )
        own = logits if len(places) == len(rows) else logits[index]
        uniform = None if luck is None else luck.to(logits.device)
        tokens[index] = choose(own[:, :known], uniform, _seen(some, own, known, how), how)
    return tokens


def _seen(
    rows: Sequence[Continuation], logits: Tensor, known: int | None, how: Sampling
) -> Tensor | None:
    """Booleans (R, known): the tokens that each row has; None where they do not matter."""
    if how.repetition_penalty == 1:
        return None
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for place, row in enumerate(rows):
        seen[place, [*row.request.tokens, *row.counts]] = True
    return seen[:, :known]

"""A continuation of a request as it grows, and the sampling of its next token.

    logits -> logit bias -> presence, frequency -> guide -> generation's choose (repetition,
    temperature, cuts, draw)

R rows that sample now, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.generation.continuation import Continuation
from ...core.generation.loop import Likely
from ...core.generation.sample import (
    Sampling,
    choose,
    likeliest,
    log_probability,
    random_generator,
    token_mask,
)
from .draft import PromptLookup
from .request import Event, FinishReason, Guide, Request, RequestHandle

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

AHEAD = 32  # uniform numbers drawn at once


class GeneratedSequence(Continuation):
    """Generated tokens of one continuation and its finish reason, with everything that decides the
    next token.

    Random numbers come one for each place: other requests change nothing. What takes time is
    computed when it is first needed, in the engine's thread: whoever submits a request does not
    wait for it.
    """

    def __init__(
        self,
        handle: RequestHandle,
        index: int,
        max_tokens: int,
        eos: frozenset[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        request = handle.request
        assert isinstance(request, Request)
        super().__init__(request.tokens, eos, max_tokens, "length", tokenizer, request.stop)
        self.handle, self.request, self.index = handle, request, index
        self.counts: Counter[int] = Counter()
        self.lookup: PromptLookup | None = None
        self._uniform: list[float] = []

    @cached_property
    def guide(self) -> Guide | None:
        return self.request.guide() if self.request.guide is not None else None

    @cached_property
    def _rng(self) -> torch.Generator:
        request = self.request
        prompt = request.tokens if request.source is None else request.source
        return random_generator(self.handle.seed, request.first + self.index, prompt)

    def uniform(self, place: int) -> float:
        """The number in [0, 1) that draws the token in this place."""
        while len(self._uniform) <= place:
            self._uniform += torch.rand(AHEAD, generator=self._rng).tolist()
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
            counts = torch.tensor([*self.counts.values()], device=logits.device)
            logits[ids] -= request.presence_penalty + request.frequency_penalty * counts
        allowed = self.guide(self.tokens) if self.guide is not None else None
        if allowed is not None:
            forbidden = torch.ones_like(logits, dtype=torch.bool)
            forbidden[: len(allowed)] = ~allowed.to(logits.device)[: len(logits)]
            logits = logits.masked_fill(forbidden, -math.inf)
        return logits

    def add(self, token: int, logprob: float, top: Likely) -> Event:
        """Appends a token; ``finish`` is set when it was the last."""
        self.counts[token] += 1
        text = self.append(token)
        reason: Any = "stop" if self.finish == "eos" else self.finish
        return Event(self.index, token, text, logprob, top, reason, self.stopped_by)

    def end(self, reason: FinishReason) -> Event:
        """Ends without another token."""
        self.finish = reason
        return Event(
            self.index, text=self.writer.close() if self.writer else "", finish_reason=reason
        )


def sample_with_logprobs(
    rows: Sequence[GeneratedSequence], logits: Tensor, adjusted: Tensor, vocab_size: int | None
) -> list[tuple[int, float, Likely]]:
    """Each row's next token with its log-probability and the likeliest in its place, from fp32
    logits (R, V)."""
    tokens = sample(rows, adjusted, vocab_size)
    logprobs = log_probability(logits, tokens).tolist()
    most = max((row.request.logprobs or 0 for row in rows), default=0)
    top = likeliest(logits, vocab_size, most) if most else [[] for _ in rows]
    cut = [tuple(best[: row.request.logprobs or 0]) for row, best in zip(rows, top, strict=True)]
    return list(zip(tokens.tolist(), logprobs, cut, strict=True))


def sample(
    rows: Sequence[GeneratedSequence], logits: Tensor, vocab_size: int | None, ahead: int = 0
) -> Tensor:
    """Sampled token (R,) of each row from logits (R, V), by the random number ``ahead`` places
    after its next one.

    Only the first ``vocab_size`` ids are drawn; rows of equal Sampling are drawn together.
    """
    tokens = torch.zeros(len(rows), dtype=torch.long, device=logits.device)
    groups: dict[Sampling, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.request.sampling, []).append(place)
    for sampling, places in groups.items():
        group = [rows[place] for place in places]
        index = torch.tensor(places, device=logits.device)
        uniform = mask = None
        if not sampling.greedy:
            random_numbers = [row.uniform(len(row.tokens) + ahead) for row in group]
            uniform = torch.tensor(random_numbers, device=logits.device)
        group_logits = logits if len(places) == len(rows) else logits[index]
        if sampling.repetition_penalty != 1:
            mask = token_mask([[*row.request.tokens, *row.counts] for row in group], group_logits)
        tokens[index] = choose(group_logits, uniform, mask, sampling, vocab_size)
    return tokens

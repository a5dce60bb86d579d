"""A continuation of a request as it grows, and the sampling of its next token.

    logits -> logit bias -> presence, frequency -> guide -> generation's choose (repetition,
    temperature, cuts, draw)

R rows that sample now, V vocabulary.
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

from ...core.generation.loop import Likely
from ...core.generation.sample import Sampling, choose, likeliest, log_probability
from ...core.generation.stop_strings import Writer
from .draft import PromptLookup
from .request import Event, FinishReason, Guide, Request, RequestHandle

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

AHEAD = 32  # uniform numbers drawn at once


class GeneratedSequence:
    """Generated tokens of one continuation and its finish reason, with everything that decides the
    next token.

    Random numbers come from the request's seed, the prompt and the index, one for each place: other
    requests change nothing. ``max_tokens`` are the most that fit. What takes time is computed when
    it is first needed, in the engine's thread: whoever submits a request does not wait for it.
    """

    def __init__(
        self,
        handle: RequestHandle,
        index: int,
        max_tokens: int,
        stop_ids: frozenset[int],
        tokenizer: Tokenizer | None,
    ) -> None:
        request = handle.request
        assert isinstance(request, Request)
        self.handle, self.request, self.index, self.max_tokens, self.stop_ids = (
            handle,
            request,
            index,
            max_tokens,
            stop_ids,
        )
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.finish: FinishReason | None = None
        self.counts: Counter[int] = Counter()
        self.lookup: PromptLookup | None = None
        self._uniform: list[float] = []

    @cached_property
    def writer(self) -> Writer | None:
        """Incremental text, with stop strings withheld."""
        if self.tokenizer is None:
            return None
        # the last few tell that the text goes on, and how an unfinished character (4 bytes at most)
        # begins
        return Writer(self.tokenizer.stream(), self.request.tokens[-16:], tuple(self.request.stop))

    @cached_property
    def guide(self) -> Guide | None:
        return self.request.guide() if self.request.guide is not None else None

    @cached_property
    def _rng(self) -> torch.Generator:
        request = self.request
        prompt = tuple(request.tokens if request.source is None else request.source)
        # as core/generation/loop.py makes it, and so the same tokens
        name = f"{self.handle.seed} {request.first + self.index} {prompt}".encode()
        return torch.Generator().manual_seed(
            int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1
        )

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
        self.tokens.append(token)
        self.counts[token] += 1
        text = ""
        stopped_by: str | int | None = None
        if token in self.stop_ids:
            self.finish, stopped_by = "stop", token
        elif self.writer is not None:
            text = self.writer.push(token)
        if self.finish is None and len(self.tokens) >= self.max_tokens:
            self.finish = "length"
        if self.writer is not None:
            text += self.writer.close() if self.finish else ""
            if self.writer.stopped_by is not None:
                self.finish, stopped_by = "stop", self.writer.stopped_by
        return Event(self.index, token, text, logprob, top, self.finish, stopped_by)

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
        random_numbers = (
            None
            if sampling.greedy
            else torch.tensor([row.uniform(len(row.tokens) + ahead) for row in group])
        )
        group_logits = logits if len(places) == len(rows) else logits[index]
        uniform = None if random_numbers is None else random_numbers.to(logits.device)
        tokens[index] = choose(
            group_logits[:, :vocab_size],
            uniform,
            _token_mask(group, group_logits, vocab_size, sampling),
            sampling,
        )
    return tokens


def _token_mask(
    rows: Sequence[GeneratedSequence], logits: Tensor, vocab_size: int | None, sampling: Sampling
) -> Tensor | None:
    """Booleans (R, vocab_size): the tokens that each row has; None without a repetition penalty."""
    if sampling.repetition_penalty == 1:
        return None
    mask = torch.zeros_like(logits, dtype=torch.bool)
    for place, row in enumerate(rows):
        mask[place, [*row.request.tokens, *row.counts]] = True
    return mask[:, :vocab_size]

"""A search with beams among other requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.generation.beam import BeamState, advance
from .results import Event
from .sequence import Request, RequestHandle

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer


class BeamSearch:
    """Beam search of one request beside others: ``logits`` (V,) are of the beams that were
    computed, by index.

        the prompt's sequence --forward--> logits --grow--> as many sequences as beams --forward-->
        logits of all --grow--> ... --> hypotheses

    A computed beam rests until all were computed, and then each goes on as the best of them
    (``Scheduler.branch``), in the pages of the one that it grew from. So a search gives the
    hypotheses that ``generation.beam`` gives.
    """

    def __init__(self, handle: RequestHandle, tokenizer: Tokenizer | None) -> None:
        request = handle.request
        self.sequences = handle.sequences
        assert isinstance(request, Request) and request.beams is not None
        self.handle = handle
        self.tokenizer = tokenizer
        self.steps = 0
        first = self.sequences[0]
        forced = len(request.tokens) - 1 if request.source else 0
        self.state = BeamState(
            request.beams, first.max_tokens, first.eos, request.length_penalty, forced
        )
        self.logits: dict[int, Tensor] = {}

    @property
    def ready(self) -> bool:
        """True once all beams were computed; at the first step they are one."""
        return len(self.logits) == (len(self.sequences) if self.steps else 1)

    def grow(self, vocab_size: int | None) -> tuple[list[int], list[int]] | None:
        """The parent of each beam and its next token; None once the search has ended."""
        rows = [self.logits[place] for place in sorted(self.logits)]
        logits = torch.stack(rows if self.steps else rows * len(self.sequences))
        self.steps += 1
        self.logits.clear()
        (parents,) = advance([self.state], logits, vocab_size)
        if parents:
            return (parents, [beam.tokens[-1] for beam in self.state.beams])
        return None

    def finish(self) -> list[Event]:
        """Events of the best hypotheses, token by token. A continuation without a hypothesis ends
        at once."""
        rows = self.handle.continuations
        events = list[Event]()
        hypotheses = self.handle.hypotheses = self.state.best(len(rows), self.tokenizer)
        for row, hypothesis in zip(rows, hypotheses, strict=False):
            for token, logprob in zip(hypothesis.tokens, hypothesis.logprobs, strict=True):
                events.append(row.add(token, logprob, ()))
        return events + [row.end("length") for row in rows[len(hypotheses) :]]

"""Beam search beside other requests: a sequence for each beam, in the pages of the one that it
grew from.

    the prompt's sequence --forward--> logits --grow--> as many sequences as beams --forward-->
    logits of all --grow--> ... --> hypotheses

A computed beam rests until all were computed, and then each goes on as the best of them
(``Scheduler.branch``). So a search gives the hypotheses that ``generation.beam`` gives.

K beams, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.generation.beam import BeamState, advance
from .request import Event, Request

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer
    from .request_state import RequestState


class BeamSearch:
    """Beam search of one request: its sequences are computed by the engine, ``logits`` (V,) are of
    those that were, by place."""

    def __init__(self, state: RequestState, tokenizer: Tokenizer | None) -> None:
        request = state.handle.request
        assert isinstance(request, Request) and request.beams is not None
        self.request, self.rows, self.sequences = request, state.rows, state.sequences
        self.tokenizer, self.steps = tokenizer, 0
        self.state = BeamState(request.beams, state.rows[0].eos, request.length_penalty)
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
        last = self.steps == self.rows[0].max_tokens
        (parents,) = advance([self.state], logits, vocab_size, last)
        return (parents, [beam.tokens[-1] for beam in self.state.beams]) if parents else None

    def finish(self, state: RequestState) -> Event:
        """Puts the events of the best hypotheses, token by token, and returns the last one. A
        continuation without a hypothesis ends at once."""
        hypotheses, events = self.state.best(self.request.n, self.tokenizer), list[Event]()
        state.handle.hypotheses, state.cached = hypotheses, self.sequences[0].cached
        for row, hypothesis in zip(self.rows, hypotheses, strict=False):
            events += [
                row.add(*pair, ())
                for pair in zip(hypothesis.tokens, hypothesis.logprobs, strict=True)
            ]
        events += [row.end("length") for row in self.rows[len(hypotheses) :]]
        state.generated = sum(len(hypothesis.tokens) for hypothesis in hypotheses)
        for event in events[:-1]:
            state.handle.put(event)
        return replace(events[-1], usage=state.usage)

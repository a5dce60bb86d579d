"""Beam search beside other requests: a sequence for each beam, in the pages of the one that it
grew from.

    the prompt's sequence --forward--> logits --grow--> as many sequences as beams --forward-->
    logits of all --grow--> ... --> hypotheses

A computed beam rests until all were computed, and then each goes on as the best of them
(``Scheduler.branch``). So a search gives the hypotheses that ``generation.beam`` gives.

K beams, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.generation.beam import Beam, BeamState, Hypothesis, best_candidates
from .generated_sequence import GeneratedSequence
from .request import Event, FinishReason, Request, RequestHandle
from .request_state import RequestState
from .scheduler import TokenSequence

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer


class BeamSearch:
    """Beam search of one request: ``sequences`` are computed by the engine, ``logits`` (V,) are of
    those that were, by place."""

    def __init__(
        self, handle: RequestHandle, rows: list[GeneratedSequence], tokenizer: Tokenizer | None
    ) -> None:
        request = handle.request
        assert isinstance(request, Request) and request.beams is not None
        self.request, self.rows, self.tokenizer, self.steps = request, rows, tokenizer, 0
        beams = [Beam(0.0), *[Beam()] * (request.beams - 1)]
        self.state = BeamState(beams, rows[0].stop_ids, request.length_penalty)
        source = None if request.source is None else tuple(request.source)
        self.sequences = [
            TokenSequence(
                list(request.tokens),
                request.client,
                source,
                source=source,
                owner=BeamOwner(self, handle, index),
            )
            for index in range(request.beams)
        ]
        self.logits: dict[int, Tensor] = {}

    @property
    def ready(self) -> bool:
        """True once all beams were computed; at the first step they are one."""
        return len(self.logits) == (len(self.sequences) if self.steps else 1)

    def grow(self, vocab_size: int | None) -> tuple[list[int], list[int]] | None:
        """The parent of each beam and its next token; None once the search has ended."""
        width, rows = len(self.sequences), [self.logits[place] for place in sorted(self.logits)]
        logits = torch.stack(rows if self.steps else rows * width)
        totals = torch.tensor([[beam.total for beam in self.state.beams]], device=logits.device)
        (candidates,) = best_candidates(logits[:, :vocab_size], totals, 2 * width)
        parents, self.steps = self.state.grow(candidates), self.steps + 1
        self.logits.clear()
        if not parents or self.steps == self.rows[0].max_tokens:
            for beam in self.state.beams if parents else ():
                self.state.add(beam, "length")
            return None
        return parents, [beam.tokens[-1] for beam in self.state.beams]

    def best_hypotheses(self) -> list[Hypothesis]:
        """The ``n`` best hypotheses, the best first."""
        best = sorted(self.state.hypotheses, key=lambda hypothesis: -hypothesis.score)[
            : self.request.n
        ]
        if self.tokenizer is None:
            return best
        eos_ids = self.state.eos_ids
        return [
            replace(
                hypothesis,
                text=self.tokenizer.decode([id for id in hypothesis.tokens if id not in eos_ids]),
            )
            for hypothesis in best
        ]

    def finish(self, state: RequestState) -> Event:
        """Puts the events of the best hypotheses, token by token, and returns the last one. A
        continuation without a hypothesis ends at once."""
        state.handle.hypotheses, state.cached = self.best_hypotheses(), self.sequences[0].cached
        hypotheses, events = state.handle.hypotheses, list[Event]()
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


@dataclass(frozen=True, eq=False)
class BeamOwner:
    """Owner of a beam's sequence."""

    search: BeamSearch
    handle: RequestHandle
    index: int
    look: None = None

    @property
    def request(self) -> Request:
        return self.search.request

    @property
    def finish(self) -> FinishReason | None:
        """Reason for the end; all beams end together."""
        return self.search.rows[0].finish

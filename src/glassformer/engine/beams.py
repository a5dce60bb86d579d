"""A search with beams beside everybody else: a text for each beam, in the pages of the one that it
grew from.

    the prompt's text --read--> logits --grow--> as many texts as beams --read--> logits of all
    --grow--> ... --> found

The texts of a search are read whenever the engine comes to them; one that was read rests until all
were, and then each goes on as the best of them (``Scheduler.branch``). So a search says what
``generation.beam`` says of its prompt.

K beams, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..generation.beam import Beam, BeamState, Hypothesis, best_candidates
from .continuation import Continuation
from .job import Job
from .request import Event, FinishReason, Handle, Request
from .scheduler import Text

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


class Search:
    """One request's beams: ``texts`` are read by the engine, ``logits`` (V,) are of those that
    were, by place."""

    def __init__(
        self, handle: Handle, rows: list[Continuation], tokenizer: Tokenizer | None
    ) -> None:
        request = handle.request
        assert isinstance(request, Request) and request.beams is not None
        self.request, self.rows, self.tokenizer, self.steps = request, rows, tokenizer, 0
        beams = [Beam(0.0), *[Beam()] * (request.beams - 1)]
        self.state = BeamState(beams, rows[0].ends, request.length_penalty)
        source = None if request.source is None else tuple(request.source)
        self.texts = [
            Text(
                list(request.tokens),
                request.client,
                source,
                source=source,
                owner=Place(self, handle, index),
            )
            for index in range(request.beams)
        ]
        self.logits: dict[int, Tensor] = {}

    @property
    def ready(self) -> bool:
        """Whether all beams were read; the first time they are one."""
        return len(self.logits) == (len(self.texts) if self.steps else 1)

    def grow(self, known: int | None) -> tuple[list[int], list[int]] | None:
        """The parent of each beam and its next token; None once all is found."""
        width, rows = len(self.texts), [self.logits[place] for place in sorted(self.logits)]
        logits = torch.stack(rows if self.steps else rows * width)
        totals = torch.tensor([[beam.total for beam in self.state.beams]], device=logits.device)
        (candidates,) = best_candidates(logits[:, :known], totals, 2 * width)
        parents, self.steps = self.state.grow(candidates), self.steps + 1
        self.logits.clear()
        if not parents or self.steps == self.rows[0].room:
            for beam in self.state.beams if parents else ():
                self.state.add(beam, "length")
            return None
        return parents, [beam.tokens[-1] for beam in self.state.beams]

    def found(self) -> list[Hypothesis]:
        """As many as were asked for, the best first."""
        best = sorted(self.state.hypotheses, key=lambda one: -one.score)[: self.request.n]
        if self.tokenizer is None:
            return best
        ends = self.state.eos_ids
        return [
            replace(one, text=self.tokenizer.decode([id for id in one.tokens if id not in ends]))
            for one in best
        ]

    def tell(self, job: Job) -> Event:
        """What was found, token by token; gives the last event. A continuation that is not there
        ends at once."""
        job.handle.hypotheses, job.cached = self.found(), self.texts[0].cached
        found, told = job.handle.hypotheses, list[Event]()
        for row, one in zip(self.rows, found, strict=False):
            told += [row.add(*pair, ()) for pair in zip(one.tokens, one.logprobs, strict=True)]
        told += [row.end("length") for row in self.rows[len(found) :]]
        job.generated = sum(len(one.tokens) for one in found)
        for event in told[:-1]:
            job.handle.put(event)
        return replace(told[-1], usage=job.usage)


@dataclass(frozen=True, eq=False)
class Place:
    """Whose a beam's text is."""

    search: Search
    handle: Handle
    index: int
    look: None = None

    @property
    def request(self) -> Request:
        """What is searched for."""
        return self.search.request

    @property
    def finish(self) -> FinishReason | None:
        """Why it ended; all beams end together."""
        return self.search.rows[0].finish

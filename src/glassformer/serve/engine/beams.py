"""Beam search beside other requests: a sequence for each beam, in the pages of the one that it
grew from.

    the prompt's sequence --forward--> logits --grow--> as many sequences as beams --forward-->
    logits of all --grow--> ... --> hypotheses

A computed beam rests until all were computed, and then each goes on as the best of them
(``Scheduler.branch``). So a search gives the hypotheses that ``generation.beam`` gives.

K beams, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.generation.beam import BeamState, Hypothesis, advance
from .request import Event, Request

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer
    from .generated_sequence import GeneratedSequence
    from .scheduler import TokenSequence


class BeamSearch:
    """Beam search of one request: its sequences are computed by the engine, ``logits`` (V,) are of
    those that were, by place."""

    def __init__(
        self,
        request: Request,
        rows: list[GeneratedSequence],
        sequences: list[TokenSequence],
        tokenizer: Tokenizer | None,
    ) -> None:
        assert request.beams is not None
        self.request, self.rows, self.sequences = request, rows, sequences
        self.tokenizer, self.steps = tokenizer, 0
        self.state = BeamState(request.beams, rows[0].eos, request.length_penalty)
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

    def finish(self) -> tuple[list[Hypothesis], list[Event]]:
        """The best hypotheses and their events, token by token. A continuation without a hypothesis
        ends at once."""
        hypotheses, events = self.state.best(self.request.n, self.tokenizer), list[Event]()
        for row, hypothesis in zip(self.rows, hypotheses, strict=False):
            events += [
                row.add(*pair, ())
                for pair in zip(hypothesis.tokens, hypothesis.logprobs, strict=True)
            ]
        events += [row.end("length") for row in self.rows[len(hypotheses) :]]
        return hypotheses, events

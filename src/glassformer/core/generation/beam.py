"""Beam search: the likeliest whole continuations, several at a time.

    prompt -- beam 1 -- the two best tokens of each beam --+-- those that end: hypotheses
           `- beam 2 -- ...                                `-- the best of the others: the next beams

P prompts, K beams of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import need
from ..nn import Model
from ..nn.finite import must_be_finite
from ..nn.hooks import ModelEdit, edited
from ..tokenizer.detokenizer import Finish
from .generating import starts_and_sources
from .prompt import Prompt, Start, end_tokens
from .session import Session

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Hypothesis:
    """One whole continuation: its tokens, the log-probability of each, and the score that ranks it.

    ``score`` is the sum of ``logprobs`` divided by their number to the power of the length penalty;
    eos counts.
    """

    tokens: list[int]
    logprobs: list[float]
    score: float
    finish: Finish
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class Beam:
    """A continuation under way; ``total`` is the sum of its ``logprobs``, -inf: out of the race."""

    total: float = -math.inf
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Candidate:
    """Beam ``parent`` with one more token: its total, the token, the token's log-probability."""

    total: float
    parent: int
    token: int
    logprob: float


@dataclass
class BeamState:
    """The search for one prompt's continuations: beams under way, and hypotheses."""

    width: int  # beams under way at once
    max_tokens: int
    eos_ids: frozenset[int]
    length_penalty: float
    forced: int = 0  # tokens of a target's start that count as written: all but the first
    hypotheses: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beams = [Beam(0.0), *[Beam()] * (self.width - 1)]

    def add(self, beam: Beam, finish: Finish) -> None:
        score = sum(beam.logprobs) / (self.forced + len(beam.tokens)) ** self.length_penalty
        self.hypotheses.append(Hypothesis(beam.tokens, beam.logprobs, score, finish))

    def grow(self, candidates: Sequence[Candidate]) -> list[int]:
        """Take the best ``candidates`` (best first) as the next beams; their parents, or none.

        After the last token what has not ended counts as it stands.
        """
        width = self.width
        grown: list[Beam] = []
        parents = []
        for rank, candidate in enumerate(candidates):
            if candidate.total == -math.inf or len(grown) == width:
                break
            parent = self.beams[candidate.parent]
            child = Beam(
                candidate.total,
                [*parent.tokens, candidate.token],
                [*parent.logprobs, candidate.logprob],
            )
            if candidate.token not in self.eos_ids:
                grown.append(child)
                parents.append(candidate.parent)
            elif rank < width:  # an ending that is not among the best is none
                self.add(child, "eos")
        self.beams = grown
        if len(self.hypotheses) >= width or not grown:
            return []
        if len(grown[0].tokens) == self.max_tokens:
            for beam in grown:
                self.add(beam, "length")
            return []
        # a vocabulary smaller than the beams: the last one again, out of the race
        missing = width - len(grown)
        self.beams = grown + [replace(grown[-1], total=-math.inf)] * missing
        return parents + parents[-1:] * missing

    def best(self, count: int, tokenizer: Tokenizer | None) -> list[Hypothesis]:
        """The ``count`` best hypotheses, the best first, with their texts."""
        ranked = sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)[:count]
        if tokenizer is None:
            return ranked
        return [
            replace(
                hypothesis,
                text=tokenizer.decode([id for id in hypothesis.tokens if id not in self.eos_ids]),
            )
            for hypothesis in ranked
        ]


def beam(
    model: Model,
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    *,
    beams: int = 4,
    best: int = 1,
    length_penalty: float = 1.0,
    max_new: int = 256,
    eos: int | Collection[int] | None = None,
    bos: bool | None = None,
    start: Start = None,
    source_tokenizer: Tokenizer | None = None,
    edits: Sequence[ModelEdit | str] = (),
    check: Callable[[], None] = lambda: None,
) -> list[list[Hypothesis]]:
    """The ``best`` continuations of each prompt that a search with ``beams`` finds, the best first.

    A prompt is done when ``beams`` hypotheses have ended, as published translation systems do it;
    what has not ended after ``max_new`` tokens counts as it stands. ``length_penalty`` 0 ranks by
    the sum of log-probabilities (which favours short texts), 1 by their mean; above 1 favours long
    ones. ``check`` is called before each token: what it raises ends the search. The other arguments
    and what is raised are those of ``generate``.
    """
    check_beams(beams, best, length_penalty, max_new)
    starts, sources = starts_and_sources(
        prompt, tokenizer, source_tokenizer, model.config, bos, start
    )
    eos_ids = end_tokens(eos, tokenizer)
    rooms = [min(max_new, model.config.context - len(ids) + 1) for ids in starts]
    forced = len(starts[0]) - 1 if sources else 0
    states = [BeamState(beams, room, eos_ids, length_penalty, forced) for room in rooms]
    tape, rows, sources = edited(edits, model, starts, sources, tokenizer)
    vocab_size = None if tokenizer is None else tokenizer.size
    session = Session(model, tape, search=True)
    try:
        _search(session, states, rows or starts, sources, vocab_size, check)
    finally:
        session.close()
    return [state.best(best, tokenizer) for state in states]


def check_beams(beams: int, best: int, length_penalty: float, max_new: int) -> None:
    """UserError for settings of ``beam`` that mean nothing, whatever the model."""
    need(1 <= beams <= 1_000_000, f"beams is {beams}; give 1 to 1,000,000.")
    need(1 <= best <= beams, f"best is {best}; give 1 to the number of beams ({beams}).")
    need(
        abs(length_penalty) <= 10,  # not nan either
        f"length_penalty is {length_penalty}; give a number from -10 to 10, such as 1.0.",
    )
    need(max_new >= 1, f"max_new is {max_new}; give 1 or more.")


def _search(
    session: Session,
    states: list[BeamState],
    starts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    vocab_size: int | None,
    check: Callable[[], None],
) -> None:
    """Fill each state's ``hypotheses``; only the first ``vocab_size`` ids are written."""
    width, room = states[0].width, max(state.max_tokens for state in states)
    logits = session.prefill(starts, sources, width)
    for index in range(room):
        check()
        must_be_finite(session.model, logits)
        parents = advance(states, logits, vocab_size)
        going = [place for place in range(len(states)) if parents[place]]
        if not going:
            return
        rows = [place * width + parent for place in going for parent in parents[place]]
        if index == 0:
            session.prepare(room * len(rows), steps=room - 1)
        session.select(rows, same_prompts=len(going) == len(states))
        states = [states[place] for place in going]
        tokens = [beam.tokens[-1] for state in states for beam in state.beams]
        logits = session.decode(torch.tensor(tokens, device=logits.device))


def advance(states: Sequence[BeamState], logits: Tensor, vocab_size: int | None) -> list[list[int]]:
    """Grow each search by a token of logits (P * K, V); the parents of its new beams, or none."""
    totals = [[beam.total for beam in state.beams] for state in states]
    candidates = best_candidates(
        logits[:, :vocab_size], torch.tensor(totals, device=logits.device), 2 * states[0].width
    )
    return [state.grow(best) for state, best in zip(states, candidates, strict=True)]


def best_candidates(logits: Tensor, totals: Tensor, count: int) -> list[list[Candidate]]:
    """The ``count`` best of each prompt's beams and their next tokens, the best first.

    logits (P * K, V), totals (P, K).
    """
    logprobs, tokens = _likeliest(logits.log_softmax(-1), count)
    per_beam = logprobs.shape[1]
    token_logprobs, ids = (x.reshape(len(totals), -1) for x in (logprobs, tokens))
    best, places = (totals.repeat_interleave(per_beam, 1) + token_logprobs).topk(
        min(count, token_logprobs.shape[1]), dim=1
    )
    columns = (
        x.tolist()
        for x in (best, places // per_beam, ids.gather(1, places), token_logprobs.gather(1, places))
    )
    return [
        [Candidate(*fields) for fields in zip(*row, strict=True)]
        for row in zip(*columns, strict=True)
    ]


BLOCK = 128


def _likeliest(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` greatest of each row (R, V) and their places, the greatest first: they are in
    the blocks whose maximum is among the ``count`` greatest, which is found faster than by sorting
    all."""
    rows, vocab = logprobs.shape
    blocks = vocab // BLOCK
    if blocks < 4 * count:
        return logprobs.topk(min(count, vocab))
    _, chosen = logprobs[:, : blocks * BLOCK].view(rows, blocks, BLOCK).amax(2).topk(count)
    inside = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=chosen.device)).flatten(1)
    tail = torch.arange(blocks * BLOCK, vocab, device=chosen.device).expand(rows, -1)
    places = torch.cat((inside, tail), 1)
    best, which = logprobs.gather(1, places).topk(count)
    return best, places.gather(1, which)

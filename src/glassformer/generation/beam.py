"""Beam search: the likeliest whole continuations, several at a time.

    prompt -- beam 1 -- the two best tokens of each beam --+-- those that end: hypotheses
           `- beam 2 -- ...                                `-- the best of the others: the next beams

P prompts, K beams of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from .. import config
from ..data.examples import Cut, question
from ..errors import need
from ..nn import EncoderDecoder, Model
from ..nn.finite import must_be_finite
from .loop import Finish
from .prompt import Prompt, Start, first_tokens, must_continue, read
from .reading import Reading

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Hypothesis:
    """One whole continuation: its tokens, the log-probability of each, and the score that ranks it.

    ``score`` is the sum of ``logprobs`` divided by their number to the power of the length penalty; eos counts.
    """

    tokens: list[int]
    logprobs: list[float]
    score: float
    finish: Finish
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dict(vars(self))


@dataclass
class Beam:
    """A continuation under way."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class BeamState:
    """The search for one prompt's continuations: the beams under way and the hypotheses there are."""

    number: int
    beams: list[Beam]
    found: list[Hypothesis] = field(default_factory=list)

    def add(self, beam: Beam, penalty: float, finish: Finish) -> None:
        """``beam`` has ended."""
        score = sum(beam.logprobs) / len(beam.tokens) ** penalty
        self.found.append(Hypothesis(beam.tokens, beam.logprobs, score, finish))


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
) -> list[list[Hypothesis]]:
    """The ``best`` continuations of each prompt that a search with ``beams`` finds, the best first.

    A prompt is done when ``beams`` hypotheses have ended, as published translation systems do it; what has not ended
    after ``max_new`` tokens counts as it stands. ``length_penalty`` 0 ranks by the sum of log-probabilities (which
    favours short texts), 1 by their mean; above 1 favours long ones. The other arguments are those of ``generate``.
    Raises UserError for settings that mean nothing and prompts that cannot be read.
    """
    must_continue(model.config)
    _check(beams, best, length_penalty, max_new)
    prompts = read(prompt, tokenizer if source_tokenizer is None else source_tokenizer, model.config, bos)
    if eos is None:
        eos = () if tokenizer is None or tokenizer.eos is None else tokenizer.eos
    ends = frozenset((eos,) if isinstance(eos, int) else eos)
    crossed = isinstance(model, EncoderDecoder)
    begin = prompts
    if crossed:
        begin = [first_tokens(tokenizer, start, model.config)] * len(prompts)
    room = min(max_new, model.config.context - max(map(len, begin)) + 1)
    known = None if tokenizer is None else tokenizer.size
    hunts = [BeamState(number, [Beam() for _ in range(beams)]) for number in range(len(prompts))]
    _search(Reading(model), hunts, begin, prompts if crossed else None, ends, room, length_penalty, known)
    told = []
    for hunt in hunts:
        ranked = sorted(hunt.found, key=lambda hypothesis: -hypothesis.score)[:best]
        told.append([_written(hypothesis, tokenizer, ends) for hypothesis in ranked])
    return told


def _asked(cfg: config.Model, tokenizer: Tokenizer, ids: list[int], cut: Cut) -> list[int]:
    """A source's ids with what closes it, cut to the context where that is allowed."""
    closed = question if isinstance(cfg, config.Decoder) else _closed
    room = cfg.context - (len(closed(tokenizer, ids)) - len(ids))
    if cut != "no" and len(ids) > room > 0:
        ids = ids[:room] if cut == "end" else ids[-room:]
    return closed(tokenizer, ids)


def _closed(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """As an encoder reads a source; nothing stays nothing, to be refused."""
    return ids if tokenizer.eos is None or not ids else [*ids, tokenizer.eos]


def search(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    batch: int = 32,
    progress: Callable[[int], None] | None = None,
    beams: int = 4,
    best: int = 1,
    length_penalty: float = 1.0,
    max_new: int = 256,
    cut: Cut = "no",
    start: Start = None,
    source_tokenizer: Tokenizer | None = None,
) -> list[list[Hypothesis]]:
    """``beam`` for many source texts, ``batch`` at once; the results in the order given. ``progress`` counts them.

    A decoder reads a source as one that was trained on Seq2Seq has learned it: closed by sep, or by its start token.
    A source too long for the model loses its "end" or "start" where ``cut`` says so; "no" refuses it.
    """
    need(batch >= 1, f"batch is {batch}; give 1 or more.")
    need(cut in get_args(Cut), f'cut is "{cut}"; give one of {", ".join(get_args(Cut))}.')
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    told: list[list[Hypothesis]] = [[] for _ in texts]
    for first in range(0, len(order), batch):
        places = order[first : first + batch]
        reads = tokenizer if source_tokenizer is None else source_tokenizer
        some = [_asked(model.config, reads, ids, cut) for ids in reads.encode_batch([texts[p] for p in places])]
        how: dict[str, Any] = {"beams": beams, "best": best, "length_penalty": length_penalty, "max_new": max_new}
        found = beam(model, tokenizer, some, start=start, **how)
        for place, hypotheses in zip(places, found, strict=True):
            told[place] = hypotheses
        if progress is not None:
            progress(first + len(places))
    return told


def _search(
    reading: Reading,
    hunts: list[BeamState],
    begin: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    ends: frozenset[int],
    room: int,
    penalty: float,
    known: int | None,
) -> None:
    """Fill each hunt's ``found``."""
    beams = len(hunts[0].beams)
    logits = reading.begin(begin, sources, beams)
    sums = torch.full((len(hunts), beams), -math.inf, device=logits.device)
    sums[:, 0] = 0.0  # all beams are the same yet: only the first may go on
    for index in range(room):
        must_be_finite(reading.model, logits)
        totals, parents, tokens, logprobs = _best(logits[:, :known], sums, 2 * beams)
        kept: list[int] = []  # rows of the batch that go on
        sums_kept: list[list[float]] = []
        next_tokens: list[int] = []
        staying = []
        for place, hunt in enumerate(hunts):
            grown: list[Beam] = []
            sums_of: list[float] = []
            for rank, total in enumerate(totals[place]):
                if total == -math.inf or len(grown) == beams:
                    break
                parent = hunt.beams[parents[place][rank]]
                token = tokens[place][rank]
                child = Beam([*parent.tokens, token], [*parent.logprobs, logprobs[place][rank]])
                if token in ends:
                    if rank < beams:  # an ending that is not among the best is none
                        hunt.add(child, penalty, "eos")
                    continue
                grown.append(child)
                sums_of.append(total)
                kept.append(place * beams + parents[place][rank])
                next_tokens.append(token)
            hunt.beams = grown
            if len(hunt.found) >= beams or not grown:
                del kept[len(kept) - len(grown) :], next_tokens[len(next_tokens) - len(grown) :]
                continue
            while len(grown) < beams:  # a vocabulary smaller than the beams: the same beam again, out of the race
                grown.append(grown[-1])
                sums_of.append(-math.inf)
                kept.append(kept[-1])
                next_tokens.append(next_tokens[-1])
            sums_kept.append(sums_of)
            staying.append(hunt)
        same = len(staying) == len(hunts)
        hunts = staying
        if not hunts:
            return
        if index + 1 == room:
            break
        if index == 0 and room * len(kept) >= 32:
            reading.settle()
        reading.keep(torch.tensor(kept, device=logits.device), among_samples=same)
        sums = torch.tensor(sums_kept, device=logits.device)
        logits = reading.go_on(torch.tensor(next_tokens, device=logits.device))
    for hunt in hunts:
        for child in hunt.beams:
            hunt.add(child, penalty, "length")


def _best(
    logits: Tensor, sums: Tensor, count: int
) -> tuple[list[list[float]], list[list[int]], list[list[int]], list[list[float]]]:
    """Of each prompt's beams and their next tokens the ``count`` best: sums, beams, tokens, log-probabilities.

    logits (P * K, V), sums (P, K).
    """
    prompts, beams = sums.shape
    logprobs = logits.log_softmax(-1).view(prompts, beams, -1)
    vocab = logprobs.shape[-1]
    totals, places = (sums[:, :, None] + logprobs).flatten(1).topk(min(count, beams * vocab), dim=1)
    own = logprobs.flatten(1).gather(1, places)
    return totals.tolist(), (places // vocab).tolist(), (places % vocab).tolist(), own.tolist()


def _written(hypothesis: Hypothesis, tokenizer: Tokenizer | None, ends: frozenset[int]) -> Hypothesis:
    """With its text, the eos left out."""
    if tokenizer is None:
        return hypothesis
    tokens = [token for token in hypothesis.tokens if token not in ends]
    return Hypothesis(
        hypothesis.tokens, hypothesis.logprobs, hypothesis.score, hypothesis.finish, tokenizer.decode(tokens)
    )


def _check(beams: int, best: int, penalty: float, max_new: int) -> None:
    need(beams >= 1, f"beams is {beams}; give 1 or more.")
    need(1 <= best <= beams, f"best is {best}; give 1 to the number of beams ({beams}).")
    need(math.isfinite(penalty), f"length_penalty is {penalty}; give a number such as 1.0.")
    need(max_new >= 1, f"max_new is {max_new}; give 1 or more.")

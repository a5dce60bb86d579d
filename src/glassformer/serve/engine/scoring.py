"""The log-probabilities of a prompt's own tokens, chunk by chunk.

R places of a chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.generation.sample import likeliest, log_probability
from .request import TokenLogprob
from .request_state import RequestState
from .scheduler import Chunk, TokenSequence


def wants_scores(sequence: TokenSequence) -> bool:
    """True for the first continuation of a request that asks for prompt log-probabilities."""
    return sequence.owner.index == 0 and sequence.owner.request.prompt_logprobs is not None


def logit_positions(chunk: Chunk) -> Sequence[int]:
    """Places in a chunk whose logits are needed: of a scored prompt all from ``since``, else the
    last."""
    length, sequence, request = len(chunk.tokens), chunk.sequence, chunk.sequence.owner.request
    if sequence.look is not None and sequence.look.tape.watches("logits"):
        return range(length)
    if wants_scores(sequence) and chunk.start < len(request.tokens):
        return range(min(max(0, request.since - chunk.start), length - 1), length)
    return range(length - 1 - chunk.drafted, length) if chunk.finishes else ()


def record_scores(
    state: RequestState, chunk: Chunk, places: Sequence[int], logits: Tensor, vocab_size: int | None
) -> None:
    """Records log-probabilities of a scored prompt's tokens from the logits (R, V) at a chunk's
    ``places``."""
    tokens, since = state.handle.prompt, chunk.sequence.owner.request.since
    last = len(tokens) - 1 - chunk.start  # the place in the chunk that the prompt's last token has
    score_places = [place for place in places if place < last and chunk.start + place >= since]
    if not wants_scores(chunk.sequence) or last < 0:
        return
    first = score_places[0] - places[0] if score_places else 0
    score_logits = logits[first : first + len(score_places)]
    following = torch.tensor(
        [tokens[chunk.start + place + 1] for place in score_places], device=logits.device
    ).long()
    logprobs, count = (
        log_probability(score_logits, following).tolist(),
        chunk.sequence.owner.request.prompt_logprobs,
    )
    top = likeliest(score_logits, vocab_size, count) if count else [[] for _ in logprobs]
    for place, score in zip(
        score_places, zip(following.tolist(), logprobs, map(tuple, top), strict=True), strict=True
    ):
        state.scores[chunk.start + 1 + place] = TokenLogprob(*score)
    if len(state.scores) == len(tokens) - 1 - since:
        scores = (state.scores[place] for place in sorted(state.scores))
        state.handle.prompt_logprobs = [TokenLogprob(tokens[since], None), *scores]

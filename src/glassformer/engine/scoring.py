"""The log-probabilities of a prompt's own tokens, chunk by chunk.

R places of a chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..generation.sample import likeliest, log_probability
from .job import Job
from .request import TokenLogprob
from .scheduler import Chunk, Text


def scored(text: Text) -> bool:
    """Whether its prompt's log-probabilities are asked for: the first continuation tells them."""
    return text.owner.index == 0 and text.owner.request.prompt_logprobs is not None


def scored_or_last(chunk: Chunk) -> Sequence[int]:
    """The places in a chunk after which logits are asked for: of a scored prompt all from
    ``since``, or the last."""
    length, text, request = len(chunk.tokens), chunk.text, chunk.text.owner.request
    if text.look is not None and text.look.tape.watches("logits"):
        return range(length)
    if scored(text) and chunk.start < len(request.tokens):
        return range(min(max(0, request.since - chunk.start), length - 1), length)
    return range(length - 1 - chunk.drafted, length) if chunk.finishes else ()


def keep_scores(
    job: Job, chunk: Chunk, places: Sequence[int], logits: Tensor, known: int | None
) -> None:
    """Of a scored prompt, what the logits (R, V) after a chunk's ``places`` say of the tokens that
    come there."""
    tokens, since = job.handle.read, chunk.text.owner.request.since
    last = len(tokens) - 1 - chunk.start  # the place in the chunk that the prompt's last token has
    some = [place for place in places if place < last and chunk.start + place >= since]
    if not scored(chunk.text) or last < 0:
        return
    own = logits[some[0] - places[0] : some[0] - places[0] + len(some)] if some else logits[:0]
    following = torch.tensor(
        [tokens[chunk.start + place + 1] for place in some], device=logits.device
    ).long()
    logprobs, count = (
        log_probability(own, following).tolist(),
        chunk.text.owner.request.prompt_logprobs,
    )
    top = likeliest(own, known, count) if count else [[] for _ in logprobs]
    for place, one in zip(
        some, zip(following.tolist(), logprobs, map(tuple, top), strict=True), strict=True
    ):
        job.scores[chunk.start + 1 + place] = TokenLogprob(*one)
    if len(job.scores) == len(tokens) - 1 - since:
        rest = (job.scores[place] for place in sorted(job.scores))
        job.handle.prompt_logprobs = [TokenLogprob(tokens[since], None), *rest]

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
    """The places in a chunk after which logits are asked for: all of a scored prompt, or the last ones."""
    length = len(chunk.tokens)
    if scored(chunk.text) and chunk.start < len(chunk.text.owner.request.tokens):
        return range(length)
    return range(length - 1 - chunk.drafted, length) if chunk.finishes else ()


def keep_scores(job: Job, chunk: Chunk, places: Sequence[int], logits: Tensor, known: int | None) -> None:
    """Of a scored prompt, what the logits (R, V) after a chunk's ``places`` say of the tokens that come there."""
    tokens = job.handle.request.tokens
    last = len(tokens) - 1 - chunk.start  # the place in the chunk that the prompt's last token has
    if not scored(chunk.text) or not places or last < 0:
        return
    own = logits[: min(len(places), last)]
    following = torch.tensor(tokens[chunk.start + 1 : chunk.start + 1 + len(own)], device=logits.device)
    logprobs, count = log_probability(own, following).tolist(), chunk.text.owner.request.prompt_logprobs
    top = likeliest(own, known, count) if count else [[] for _ in logprobs]
    for place, one in enumerate(zip(following.tolist(), logprobs, map(tuple, top), strict=True)):
        job.scores[chunk.start + 1 + place] = TokenLogprob(*one)
    if len(job.scores) == len(tokens) - 1:
        rest = (job.scores[place] for place in sorted(job.scores))
        job.handle.prompt_logprobs = [TokenLogprob(tokens[0], None), *rest]

"""What is seen of one request while others run beside it, chunk by chunk: the log-probabilities of
its prompt, and the values that its tape has recorded.

R places of a chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from ...core import config
from ...core.errors import UserError, need
from ...core.generation.sample import likeliest, log_probability
from ...core.nn import Model, Tape
from ...core.nn.finite import is_finite
from ...sight.looking import must_match
from ...sight.reading import Reading, as_edit_list, build_hooks
from .request import RecordedValues, Request, TokenLogprob, concatenate, token_axis
from .sequence import Chunk, RequestHandle, Sequence


class Look:
    """Tape of one continuation with the values that nobody took yet; ``next`` is the first place to
    be recorded."""

    def __init__(self, patterns: Seq[str], edits: Mapping[str, Any], since: int = 0) -> None:
        self.tape, self.next = Tape(*patterns, edits=edits), since
        self.pieces: list[RecordedValues] = []
        self.error: Exception | None = None  # of an edit

    def keep(self, start: int, length: int) -> None:
        """Keeps the values of a chunk of ``length`` tokens from place ``start`` on, without those
        recorded before."""
        recorded, self.next = max(0, self.next - start), max(self.next, start + length)
        if self.tape.records and recorded < length:
            cut = {
                path: x.narrow(token_axis(path), recorded, length - recorded).clone()
                for path, x in self.tape.records.items()
            }
            self.pieces.append(RecordedValues(start + recorded, cut))
        self.tape.records.clear()


def fork(parent: Sequence, sequence: Sequence) -> Sequence:
    """``sequence``, another continuation of the prompt of ``parent``, with the values recorded so
    far."""
    sequence.fork_parent = parent
    if parent.look is not None:
        sequence.look.next, sequence.look.pieces, sequence.recompute_from = (
            parent.look.next,
            [*parent.look.pieces],
            parent.look.next,
        )
    return sequence


def edit_error(sequence: Sequence, logits: Tensor) -> Exception | None:
    """Error of an edit in the pass that gave these logits: it fails its own sequence, no other in
    the step."""
    look: Look | None = sequence.look
    if look is None or look.error is not None or not look.tape.edits or is_finite(logits):
        return None if look is None else look.error
    return UserError("The edits make NaN or infinite numbers of the logits; give smaller ones.")


def take_records(sequence: Sequence) -> RecordedValues | None:
    """Values recorded of a sequence since the last call; None where nothing is recorded."""
    if sequence.look is None or not sequence.look.pieces:
        return None
    pieces, sequence.look.pieces = sequence.look.pieces, []
    return concatenate(pieces)


def prepare_looks(
    handle: RequestHandle, model: Model, tokenizer: Any, shapes: Mapping[str, Any], step: int
) -> None:
    """Gives each sequence of a request that records or edits a Look, and the handle its prompt with
    the edits applied.

    ``shapes`` are the model's paths, ``step`` the tokens of a step. Raises UserError for a path or
    an edit that the model does not have.
    """
    request, unsplit = handle.request, 0
    assert isinstance(request, Request)
    need(
        isinstance(model.config, config.Decoder),
        "An engine looks inside decoders alone; use glassformer.look for this model.",
    )
    must_match(request.want, [*shapes])
    reading = Reading(model, [[*request.tokens]], tokenizer=tokenizer, grows=True)
    reading.__dict__["shapes"] = shapes  # known already
    hooks = build_hooks(request.edits, reading)
    assert reading.rows
    # a mean over the prompt
    if any(getattr(edit, "fill", "") == "mean" for edit in as_edit_list(request.edits)):
        unsplit, hint = len(request.tokens), f"shorten it to {step // 2}, or ablate with zeros"
        need(
            unsplit <= step // 2,
            f"A mean over {unsplit} tokens of prompt is more than one step of the engine; {hint}.",
        )
    handle.prompt = reading.rows[0]
    for sequence in handle.sequences:
        sequence.ids, sequence.recompute_from = [*handle.prompt], request.since
        sequence.unsplit, sequence.look = unsplit, Look(request.want, hooks, request.since)
        if request.edits:  # what an edit changes is nobody else's
            sequence.cache_key = handle


def wants_scores(sequence: Sequence) -> bool:
    """True for the first continuation of a request that asks for prompt log-probabilities."""
    return sequence.index == 0 and sequence.request.prompt_logprobs is not None


def logit_positions(chunk: Chunk) -> Seq[int]:
    """Places in a chunk whose logits are needed: of a scored prompt all from ``since``, else the
    last."""
    length, sequence, request = len(chunk.tokens), chunk.sequence, chunk.sequence.request
    if sequence.look is not None and sequence.look.tape.watches("logits"):
        return range(length)
    if wants_scores(sequence) and chunk.start < len(request.tokens):
        return range(min(max(0, request.since - chunk.start), length - 1), length)
    return range(length - 1 - chunk.drafted, length) if chunk.finishes else ()


def record_scores(chunk: Chunk, vocab_size: int | None) -> None:
    """Records log-probabilities of a scored prompt's tokens from a chunk's logits."""
    handle, request, start = chunk.handle, chunk.sequence.request, chunk.start
    prompt, since, count = handle.prompt, request.since, request.prompt_logprobs
    last = len(prompt) - 1 - start  # the place in the chunk that the prompt's last token has
    if not wants_scores(chunk.sequence) or last < 0:
        return
    # rows of logits that are followed by a token of the prompt, by the place in the chunk
    rows = {p: row for row, p in enumerate(chunk.places) if p < last and start + p >= since}
    first = next(iter(rows.values()), 0)
    logits = chunk.logits[first : first + len(rows)]
    following = torch.tensor([prompt[start + place + 1] for place in rows], device=logits.device)
    logprobs = log_probability(logits, following.long()).tolist()
    top = likeliest(logits, vocab_size, count) if count else [() for _ in rows]
    for place, logprob, likely in zip(rows, logprobs, top, strict=True):
        at = start + 1 + place
        handle.scores[at] = TokenLogprob(prompt[at], logprob, tuple(likely))
    if len(handle.scores) == len(prompt) - 1 - since:
        scores = (handle.scores[place] for place in sorted(handle.scores))
        handle.prompt_logprobs = [TokenLogprob(prompt[since], None), *scores]

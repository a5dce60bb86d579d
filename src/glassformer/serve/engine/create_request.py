"""Creation of a request's state: its continuations, each with the sequence that is computed for
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.generation.prompt import end_tokens
from ...core.nn import Model
from .beams import BeamSearch
from .generated_sequence import GeneratedSequence
from .looking import create_looks
from .request import Request, RequestHandle
from .request_state import RequestState
from .scheduler import TokenSequence

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer


def create_request_state(
    handle: RequestHandle,
    model: Model,
    tokenizer: Tokenizer | None,
    context: int,
    step: int,
    shapes: Callable[[], dict[str, tuple[int, ...]]],
) -> RequestState:
    """State of a handle's request; ``step`` are the tokens of a step, ``shapes`` gives the model's
    paths.

    Raises UserError for edits and recorded paths that the model does not have.
    """
    request = handle.request
    assert isinstance(request, Request)
    max_tokens = context - len(request.tokens) + 1
    max_tokens = max_tokens if request.max_new is None else min(max_tokens, request.max_new)
    stop_ids = (
        end_tokens(None, tokenizer)
        if request.stop_tokens is None
        else frozenset(request.stop_tokens)
    )
    rows = [
        GeneratedSequence(handle, index, max_tokens, stop_ids, tokenizer)
        for index in range(request.size)
    ]
    source = None if request.source is None else tuple(request.source)
    sequences = [
        TokenSequence(list(request.tokens), request.client, source, source=source, owner=row)
        for row in rows
    ]
    state = RequestState(
        handle, rows[: request.n], sequences, forks=[*range(1, request.n)], open=request.n
    )
    if request.beams is not None:
        state.search = BeamSearch(request, state.rows, sequences, tokenizer)
    sequences[0].recompute_from = None if request.prompt_logprobs is None else request.since
    if request.want or request.edits:
        handle.prompt, unsplit, request_looks = create_looks(
            request, model, tokenizer, shapes(), step
        )
        for sequence, look in zip(sequences, request_looks, strict=True):
            sequence.tokens, sequence.recompute_from, sequence.unsplit, sequence.look = (
                [*handle.prompt],
                request.since,
                unsplit,
                look,
            )
            sequence.cache_key = (
                request_looks[0] if request.edits else source
            )  # what an edit changes is nobody else's
    return state

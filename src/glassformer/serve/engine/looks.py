"""Requests that record or edit values inside the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import need
from ...core.nn import Model
from ...sight.looking import must_match
from ...sight.reading import Reading, as_edit_list, build_hooks
from .recording import Look
from .sequence import Request, RequestHandle


def prepare_looks(
    handle: RequestHandle, model: Model, tokenizer: Any, shapes: Mapping[str, Any], step: int
) -> None:
    """Gives each sequence of a request that records or edits a Look, and the handle its prompt with
    the edits applied.

    ``shapes`` are the model's paths, ``step`` the tokens of a step. Raises UserError for a path or
    an edit that the model does not have.
    """
    request = handle.request
    unsplit = 0
    assert isinstance(request, Request)
    need(
        model.config.is_decoder,
        "The engine looks inside decoders only; use glassformer.look for this model.",
    )
    must_match(request.want, [*shapes])
    reading = Reading(model, [[*request.tokens]], None, tokenizer, grows=True)
    reading.__dict__["shapes"] = shapes  # known already
    hooks = build_hooks(request.edits, reading)
    assert reading.rows is not None
    # a mean over the prompt
    if any(getattr(edit, "fill", "") == "mean" for edit in as_edit_list(request.edits)):
        unsplit = len(request.tokens)
        hint = f"shorten it to {step // 2}, or ablate with zeros"
        need(
            unsplit <= step // 2,
            f"A mean over {unsplit} tokens of prompt is more than one step of the engine; {hint}.",
        )
    handle.prompt = reading.rows[0]
    for sequence in handle.sequences:
        sequence.ids = [*handle.prompt]
        sequence.recompute_from = request.since
        sequence.unsplit = unsplit
        sequence.look = Look(request.want, hooks, request.since)
        if request.edits:  # what an edit changes is nobody else's
            sequence.cache_key = handle

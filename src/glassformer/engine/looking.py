"""A look inside one request while others run beside it: its tape, and what it has recorded, chunk
by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .. import config
from ..errors import UserError, need
from ..inspection.looking import must_match
from ..nn import Model, Tape
from ..nn.editing import Reading, as_edit_list, build_hooks
from ..nn.finite import is_finite
from .request import Request, Seen, joined, token_axis
from .scheduler import Text


class Look:
    """The tape of one continuation, and the values that nobody took yet; ``next`` is the first
    place to be recorded."""

    def __init__(self, patterns: Sequence[str], edits: Mapping[str, Any], since: int = 0) -> None:
        self.tape, self.next = Tape(*patterns, edits=edits), since
        self.pieces: list[Seen] = []
        self.error: Exception | None = None  # of an edit

    def keep(self, start: int, length: int) -> None:
        """A chunk of so many tokens that began at place ``start`` was read; what is known of it is
        not kept again."""
        known, self.next = max(0, self.next - start), max(self.next, start + length)
        if self.tape.records and known < length:
            cut = {
                path: x.narrow(token_axis(path), known, length - known).clone()
                for path, x in self.tape.records.items()
            }
            self.pieces.append(Seen(start + known, cut))
        self.tape.records.clear()


def like(first: Text, other: Text) -> Text:
    """``other``, another continuation of the prompt of ``first``, with what is known of it by
    now."""
    other.twin = first
    if first.look is not None:
        other.look.next, other.look.pieces, other.own = (
            first.look.next,
            [*first.look.pieces],
            first.look.next,
        )
    return other


def fault(text: Text, logits: Tensor) -> Exception | None:
    """What an edit did wrong in the pass that gave these logits: it fails its own text, no other in
    the step."""
    look: Look | None = text.look
    if look is None or look.error is not None or not look.tape.edits or is_finite(logits):
        return None if look is None else look.error
    return UserError("The edits make NaN or infinite numbers of the logits; give smaller ones.")


def taken(text: Text) -> Seen | None:
    """What was recorded of a text since the last time; None where nobody looks."""
    if text.look is None or not text.look.pieces:
        return None
    pieces, text.look.pieces = text.look.pieces, []
    return joined(pieces)


def looks(
    request: Request, model: Model, tokenizer: Any, shapes: dict[str, tuple[int, ...]], step: int
) -> tuple[list[int], int, list[Look]]:
    """What a request with wishes reads, its edits applied; how much of it in one go; a Look for
    each continuation.

    ``shapes`` are the model's paths, ``step`` the tokens of a step. Raises UserError for a path or
    an edit of what is not there.
    """
    stack = isinstance(getattr(model.config, "decoder", None), config.Stack)
    if not stack or request.source is not None:
        raise UserError(
            "An engine looks inside decoders with attention alone; use "
            "glassformer.look for this model."
        )
    must_match(request.want, [*shapes])
    reading = Reading.for_generation(model, [request.tokens], None, tokenizer)
    reading.__dict__["shapes"] = shapes  # known already
    hooks, whole = build_hooks(request.edits, reading), 0
    assert reading.rows is not None
    # a mean over the prompt
    if any(getattr(edit, "fill", "") == "mean" for edit in as_edit_list(request.edits)):
        whole, said = len(request.tokens), f"shorten it to {step // 2}, or ablate with zeros"
        need(
            whole <= step // 2,
            f"A mean over {whole} tokens of prompt is more than one step of the engine; {said}.",
        )
    return (
        reading.rows[0],
        whole,
        [Look(request.want, hooks, request.since) for _ in range(request.n)],
    )

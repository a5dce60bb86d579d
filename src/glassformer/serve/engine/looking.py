"""A look inside one request while others run beside it: its tape, and what it has recorded, chunk
by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...core import config
from ...core.errors import UserError, need
from ...core.nn import Model, Tape
from ...core.nn.editing import Reading, as_edit_list, build_hooks
from ...core.nn.finite import is_finite
from ...sight.looking import must_match
from .request import RecordedValues, Request, concatenate, token_axis
from .scheduler import TokenSequence


class Look:
    """Tape of one continuation with the values that nobody took yet; ``next`` is the first place to
    be recorded."""

    def __init__(self, patterns: Sequence[str], edits: Mapping[str, Any], since: int = 0) -> None:
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


def fork(parent: TokenSequence, sequence: TokenSequence) -> TokenSequence:
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


def edit_error(sequence: TokenSequence, logits: Tensor) -> Exception | None:
    """Error of an edit in the pass that gave these logits: it fails its own sequence, no other in
    the step."""
    look: Look | None = sequence.look
    if look is None or look.error is not None or not look.tape.edits or is_finite(logits):
        return None if look is None else look.error
    return UserError("The edits make NaN or infinite numbers of the logits; give smaller ones.")


def take_records(sequence: TokenSequence) -> RecordedValues | None:
    """Values recorded of a sequence since the last call; None where nothing is recorded."""
    if sequence.look is None or not sequence.look.pieces:
        return None
    pieces, sequence.look.pieces = sequence.look.pieces, []
    return concatenate(pieces)


def create_looks(
    request: Request, model: Model, tokenizer: Any, shapes: dict[str, tuple[int, ...]], step: int
) -> tuple[list[int], int, list[Look]]:
    """Prompt ids of a request that records or edits, with its edits applied; the number of them
    that one forward pass must take; and a Look for each continuation.

    ``shapes`` are the model's paths, ``step`` the tokens of a step. Raises UserError for a path or
    an edit that the model does not have.
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
    hooks, unsplit = build_hooks(request.edits, reading), 0
    assert reading.rows is not None
    # a mean over the prompt
    if any(getattr(edit, "fill", "") == "mean" for edit in as_edit_list(request.edits)):
        unsplit, hint = len(request.tokens), f"shorten it to {step // 2}, or ablate with zeros"
        need(
            unsplit <= step // 2,
            f"A mean over {unsplit} tokens of prompt is more than one step of the engine; {hint}.",
        )
    return (
        reading.rows[0],
        unsplit,
        [Look(request.want, hooks, request.since) for _ in range(request.n)],
    )

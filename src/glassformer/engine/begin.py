"""A request as the engine begins with it: its continuations, each with the text that is read for
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..generation.prompt import end_tokens
from ..nn import Model
from .beams import Search
from .continuation import Continuation
from .job import Job
from .looking import looks
from .request import Handle, Request
from .scheduler import Text

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


def begun(
    handle: Handle,
    model: Model,
    tokenizer: Tokenizer | None,
    context: int,
    step: int,
    shapes: Callable[[], dict[str, tuple[int, ...]]],
) -> Job:
    """The job of a handle's request; ``step`` are the tokens of a step, ``shapes`` gives the
    model's paths.

    Raises UserError for edits and wishes of what is not there.
    """
    request = handle.request
    assert isinstance(request, Request)
    room = context - len(request.tokens) + 1
    room = room if request.max_new is None else min(room, request.max_new)
    ends = (
        end_tokens(None, tokenizer)
        if request.stop_tokens is None
        else frozenset(request.stop_tokens)
    )
    rows = [Continuation(handle, index, room, ends, tokenizer) for index in range(request.n)]
    if request.beams is not None:
        return Job(handle, rows, Search(handle, rows, tokenizer).texts, [], request.n)
    source = None if request.source is None else tuple(request.source)
    texts = [
        Text(list(request.tokens), request.client, source, source=source, owner=row) for row in rows
    ]
    texts[0].own = None if request.prompt_logprobs is None else request.since
    if request.want or request.edits:
        handle.read, whole, own = looks(request, model, tokenizer, shapes(), step)
        for text, look in zip(texts, own, strict=True):
            text.tokens, text.own, text.whole, text.look = (
                [*handle.read],
                request.since,
                whole,
                look,
            )
            text.root = own[0] if request.edits else source  # what an edit changes is nobody else's
    return Job(handle, rows, texts, [*range(1, request.n)], request.n)

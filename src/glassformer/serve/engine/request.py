"""Requests to an engine, and the events and results of their growth.

    handle = engine.submit(Request(tokens, max_new=20))        for event in handle: print(event.text)
    handle = engine.submit(Encode(tokens, output="vector"))    handle.result().output

V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor

from ...core.errors import UserError, need
from ...core.generation.beam import check_beams
from ...core.generation.loop import Likely
from ...core.generation.sample import Sampling
from ...core.nn.edited import ModelEdit
from .recording import RecordedValues

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
Guide: TypeAlias = Callable[[Sequence[int]], Tensor | None]
"""(the tokens generated so far) -> booleans (V,) or fewer, true for what may follow; None: anything
may.

Asked once for each token that is drawn, each time with one token more than before."""
Encoded: TypeAlias = Literal["vector", "labels", "tags", "logits", "hidden"]


class QueueFull(UserError):
    """The queue holds as many requests as ``max_queue`` allows; try again later."""

    http_status = 429, "queue_full"


class RequestTooLarge(UserError):
    """A request, or several that belong together, that would never fit in the engine's
    ``max_queue``."""


class EngineClosed(UserError):
    """The engine was closed; it takes no more requests."""

    http_status = 503, "engine_closed"


def first_outside(numbers: Iterable[int], count: int) -> int | None:
    """The first of the numbers that is not one of 0 to ``count`` - 1."""
    return next((number for number in numbers if not 0 <= number < count), None)


SEARCHED = (
    *("sampling", "stop", "logit_bias", "presence_penalty", "frequency_penalty"),
    *("logprobs", "prompt_logprobs", "guide", "want", "edits"),
)
"""What a search with beams does not take."""


@dataclass(frozen=True)
class Request:
    """A text to be continued.

    ``tokens`` are what the decoder begins with; ``source`` is what an encoder-decoder's encoder
    reads. At most ``max_new`` tokens follow (None: to the end of the context; 0: the prompt is only
    read), ending at a string of ``stop`` or a token of ``stop_tokens`` (None: the tokenizer's eos;
    () never). ``n`` continuations of one prompt are read once; the same ``seed`` gives the same
    tokens as ``glassformer.generate``, whose samples of a prompt are counted from ``first`` on.
    ``logit_bias`` is added to logits by token id; ``presence_penalty`` and ``frequency_penalty``
    are taken off generated tokens' logits, once and per occurrence. ``logprobs`` asks for so many
    of the likeliest tokens in each place, ``prompt_logprobs`` for the prompt's tokens' own
    log-probabilities and so many of the likeliest in their places. ``guide`` makes a Guide for each
    continuation. With ``beams`` the likeliest whole texts are searched for, that many at a time, as
    ``generation.beam`` finds them: the ``n`` best come once all is found, ranked by
    ``length_penalty``. The engine is fair between ``client``s. ``want`` are the paths (with * and
    ?) of values inside the model to be recorded, for this request's own tokens; ``edits``
    (inspection.edits) change them. Others in the same step keep their bits. Of what stands before
    place ``since`` nothing is recorded or scored, and what pages hold of it is not read again.
    Raises UserError for what means nothing whatever the model.
    """

    tokens: Sequence[int]
    source: Sequence[int] | None = None
    sampling: Sampling = Sampling()
    max_new: int | None = 256
    seed: int | None = None
    n: int = 1
    first: int = 0
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guide: Callable[[], Guide] | None = None
    client: str = ""
    want: Sequence[str] = ()
    edits: Sequence[ModelEdit | str] = ()
    since: int = 0
    beams: int | None = None
    length_penalty: float = 1.0

    @property
    def size(self) -> int:
        """Number of continuations, or beams, that are computed for it."""
        return self.beams or self.n

    def __post_init__(self) -> None:
        if self.beams is not None:
            check_beams(
                self.beams, self.n, self.length_penalty, 1 if self.max_new is None else self.max_new
            )
            plain = Request(self.tokens)
            conflicts = [
                name
                for name in SEARCHED
                if getattr(self, name) not in (getattr(plain, name), None, [], {})
            ]
            need(
                not conflicts,
                "A search with beams is by the model's own probabilities; leave out "
                f"{', '.join(conflicts)}.",
            )
        need(
            0 <= self.since < max(1, len(self.tokens)),
            f"since is {self.since}; give a place in the prompt.",
        )
        need(
            self.max_new is None or self.max_new >= 0, f"max_new is {self.max_new}; give 0 or more."
        )
        need(self.n >= 1, f"n is {self.n}; give 1 or more.")
        need("" not in self.stop, "A stop string is empty; give at least one character.")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            need(
                count is None or count >= 0, f"{name} is {count}; give 0 or more, or leave it out."
            )


@dataclass(frozen=True)
class Encode:
    """A whole text to be read once; ``output`` says what of it is answered.

    vector  as the model's own Pool makes it, or the mean of its last hidden states (C,)
    labels  the logits of a Pool with labels (L,)
    tags    the logits of a TokenHead (T, L)
    logits  the head's (P, V), at ``positions`` alone where they are given
    hidden  the last hidden states (T, C), at ``positions`` alone where they are given
    """

    tokens: Sequence[int]
    segments: Sequence[int] | None = None  # of a pair of texts, one for each token (BERT)
    output: Encoded = "vector"
    positions: Sequence[int] | None = None
    client: str = ""
    size = n = 1  # a text, as a Request counts them
    seed = None
    want = ()

    def __post_init__(self) -> None:
        need(
            self.output in get_args(Encoded),
            f'output is "{self.output}"; give one of {", ".join(get_args(Encoded))}.',
        )
        need(
            self.segments is None or len(self.segments) == len(self.tokens),
            "Give a segment for each token, or none.",
        )
        wrong = first_outside(self.positions or (), len(self.tokens))
        need(
            wrong is None,
            f"Position {wrong} is not in a text of {len(self.tokens)} tokens; give 0 or more.",
        )


class Usage(NamedTuple):
    """Tokens read and written; ``cached`` of the prompt were read before and not again."""

    prompt: int
    cached: int
    generated: int


class TokenLogprob(NamedTuple):
    """A token of the prompt, the natural logarithm of its probability (None: the first), and the
    likeliest there."""

    token: int
    logprob: float | None
    top: Likely = ()


@dataclass(frozen=True)
class Event:
    """One more token of one continuation, or its end.

    ``index`` counts the continuations of the request, 0 to n - 1. ``text`` is what may be shown
    now: empty while a character is incomplete or a stop string may have begun. ``logprob`` is of
    the model's own distribution, before penalties, temperature and cuts; ``top`` are the likeliest
    in the token's place. ``records`` are the wanted values of the tokens that were read for this
    one: of the prompt, then each time of the token before. ``finish_reason`` is set on a
    continuation's last event, with the ``stopped_by`` string or token; ``token`` is None where it
    ended without one. ``usage`` is set on the last event of the request, and nothing comes after
    it. ``error`` says why it failed.
    """

    index: int
    token: int | None = None
    text: str = ""
    logprob: float | None = None
    top: Likely = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    usage: Usage | None = None
    error: Exception | None = None
    records: RecordedValues | None = None


@dataclass
class Completion:
    """One whole continuation; ``tokens`` hold the eos or the stop string's that ended it, ``text``
    leaves those out."""

    index: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    top: list[Likely] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None


@dataclass
class Result:
    """Completions, usage and scores of a request; ``output`` is an Encode's."""

    completions: list[Completion]
    usage: Usage
    prompt_logprobs: list[TokenLogprob] | None = None
    output: Tensor | None = None

    @property
    def text(self) -> str:
        """The first continuation's text."""
        return self.completions[0].text


@dataclass
class Stats:
    """Current numbers of an engine (requests ``running`` and ``waiting``, pages) and totals since
    its start.

    Pages of layers with windows are counted beside the others; ``used_share`` is of the memory of
    all.
    """

    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    used_share: float = 0.0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    preempted: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

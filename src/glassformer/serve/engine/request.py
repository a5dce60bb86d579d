"""Requests to an engine, the events of their growth, and a handle on each.

    handle = engine.submit(Request(tokens, max_new=20))        for event in handle: print(event.text)
    handle = engine.submit(Encode(tokens, output="vector"))    handle.result().output

V vocabulary.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.errors import UserError, need
from ...core.generation.beam import Hypothesis, check_beams
from ...core.generation.loop import Likely
from ...core.generation.sample import Sampling
from ...core.nn.editing import ModelEdit
from ...fast.paged import HEADS

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
            defaults = {member.name: member.default for member in fields(self)}
            conflict = next(
                (
                    name
                    for name in SEARCHED
                    if getattr(self, name) not in (defaults[name], None, [], {})
                ),
                None,
            )
            need(
                conflict is None,
                f"A search with beams is by the model's own probabilities; leave out {conflict}.",
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

    @property
    def size(self) -> int:
        """One text, as a Request counts them."""
        return 1

    def __post_init__(self) -> None:
        need(
            self.output in get_args(Encoded),
            f'output is "{self.output}"; give one of {", ".join(get_args(Encoded))}.',
        )
        need(
            self.segments is None or len(self.segments) == len(self.tokens),
            "Give a segment for each token, or none.",
        )
        wrong = next(
            (place for place in self.positions or () if not 0 <= place < len(self.tokens)), None
        )
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


class RecordedValues(NamedTuple):
    """Values of the tokens from place ``start`` on by path: (1, T, ...), (1, H, T, ...), of
    patterns (1, H, T, S)."""

    start: int
    values: dict[str, Tensor]


SQUARE = ("scores", "pattern")  # a row for each token, which has a column for each token up to it


def token_axis(path: str) -> int:
    """Axis of a recorded value along which its tokens lie."""
    leaf = path.rpartition(".")[2]
    return 2 if leaf in SQUARE or leaf in HEADS else 1


def concatenate(pieces: Sequence[RecordedValues]) -> RecordedValues:
    """Joins consecutive pieces; later tokens of a pattern have more keys."""
    values = {}
    for path in pieces[0].values if len(pieces) > 1 else ():
        values_by_piece, leaf = [piece.values[path] for piece in pieces], path.rpartition(".")[2]
        if leaf in SQUARE:
            widest, nothing = (
                values_by_piece[-1].shape[-1],
                0.0 if leaf == "pattern" else float("-inf"),
            )
            values_by_piece = [
                F.pad(x, (0, widest - x.shape[-1]), value=nothing) for x in values_by_piece
            ]
        values[path] = torch.cat(values_by_piece, token_axis(path))
    return RecordedValues(pieces[0].start, values) if len(pieces) > 1 else pieces[0]


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


class RequestHandle:
    """A request under way: iterate over its events from one thread (``for``) or one task (``async
    for``).

    ``prompt_logprobs`` and ``output`` are there when the first event is; ``seed`` repeats the
    request; ``prompt`` are the prompt's ids with its edits applied. ``records`` are all recorded
    values, by continuation and path, once ``result`` has given all: over the T tokens that were
    read, prompt first, the last one that was drawn never.
    """

    def __init__(
        self, request: Request | Encode, cancel: Callable[[RequestHandle], None], seed: int = 0
    ) -> None:
        self.request, self.seed = request, seed
        self.prompt_logprobs: list[TokenLogprob] | None = None
        self.output: Tensor | None = None
        self.prompt: Sequence[int] = request.tokens
        self.records: dict[int, dict[str, Tensor]] = {}
        self.hypotheses: list[Hypothesis] = []  # of a search with beams, once it has ended
        self.start_time: float | None = None  # time.monotonic() when it stopped waiting
        self._cancel = cancel
        self._events: deque[Event] = deque()
        self._condition = threading.Condition()
        self._wake: Callable[[], None] | None = None  # an event loop that waits
        self._ended = False  # the last event was read

    def cancel(self) -> None:
        """End it at the engine's next step; its continuations finish as "cancelled". Harmless when
        it has ended."""
        self._cancel(self)

    def put(self, event: Event) -> None:
        """Queues an event, from the engine's thread."""
        with self._condition:
            self._events.append(event)
            self._condition.notify_all()
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _take(self, wake: Callable[[], None] | None = None) -> Event | None:
        """The next event; None where there is none yet, and ``wake`` is called once there is."""
        if not self._events:
            self._wake = wake
            return None
        event = self._events.popleft()
        self._ended = event.usage is not None
        return event

    def __iter__(self) -> Iterator[Event]:
        while not self._ended:
            with self._condition:
                self._condition.wait_for(lambda: self._events)
                event = self._take()
            if event is not None:
                yield event

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        while not self._ended:
            ready = asyncio.Event()

            def wake(ready: asyncio.Event = ready) -> None:
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(ready.set)

            with self._condition:
                event = self._take(wake)
            if event is None:
                await ready.wait()
            else:
                yield event

    def result(self) -> Result:
        """Wait for the end and give all at once; raises what made the request fail."""
        return self.collect(list(self))

    async def wait(self) -> Result:
        """``result`` for a task."""
        return self.collect([event async for event in self])

    def collect(self, events: Sequence[Event]) -> Result:
        """Result of all events; raises what made the request fail."""
        count = getattr(self.request, "n", 1)
        completions = [Completion(index) for index in range(count)]
        usage = Usage(len(self.request.tokens), 0, 0)
        for event in events:
            if event.error is not None:
                raise event.error
            completion = completions[event.index]
            completion.text += event.text
            if event.token is not None and event.logprob is not None:
                completion.tokens.append(event.token)
                completion.logprobs.append(event.logprob)
                completion.top.append(event.top)
            if event.finish_reason is not None:
                completion.finish_reason, completion.stopped_by = (
                    event.finish_reason,
                    event.stopped_by,
                )
            usage = event.usage or usage
        for index in range(count if getattr(self.request, "want", ()) else 0):
            pieces = [
                event.records
                for event in events
                if event.index == index and event.records is not None
            ]
            self.records[index] = concatenate(pieces).values if pieces else {}
        return Result(completions, usage, self.prompt_logprobs, self.output)

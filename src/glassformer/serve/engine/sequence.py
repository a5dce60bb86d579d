"""Requests to an engine, and what becomes of them: events, results, and a sequence for each continuation or beam.

    handle = engine.submit(Request(tokens, max_new=20))        for event in handle: print(event.text)
    handle = engine.submit(Encode(tokens, output="vector"))    handle.result().output

    submit --> RequestHandle --> Sequence, Sequence, ...   the prompt and what follows it, in pages
                    |                |  a step computes a SequenceChunk of it
                    |                v
    client <-- events <-- add <-- sample <-- logits -> bias -> penalties -> guide

R rows that sample now, P places of a chunk, V vocabulary.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ...core.errors import UserError, must_be_known, need
from ...core.generation.beam import Hypothesis, check_beams
from ...core.generation.sample import (
    Likely,
    Sampling,
    choose,
    likeliest,
    log_probability,
    random_generator,
    token_mask,
)
from ...core.nn.hooks import ModelEdit
from ...core.tokenizer.detokenizer import Continuation
from .recording import Look, RecordedValues, concatenate
from .results import Completion, Event, FinishReason, Result, TokenLogprob, Usage

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

AHEAD = 32  # uniform numbers drawn at once
NO_LOGITS = torch.empty(0)
# tokens at the end that are compared with what stands earlier in the text; two of them have to be
# alike
LONGEST = 4
TRIED = 8  # places that are compared
PATIENCE = 3  # steps that a text makes without guesses after the last ones were mostly wrong

Guide: TypeAlias = Callable[[Seq[int]], Tensor | None]
"""(the tokens generated so far) -> booleans (V,) or fewer, true for what may follow; None:
anything may.

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


def check_tokens(tokens: Seq[int], vocab: int, context: int, text: str = "tokens") -> None:
    need(bool(tokens), "The prompt is empty; give at least one token.")
    must_be_known(tokens, vocab)
    length = len(tokens)
    need(length <= context, f"{length} {text} are more than the {context} allowed; shorten them.")


def first_outside(numbers: Iterable[int], count: int) -> int | None:
    """The first of the numbers that is not one of 0 to ``count`` - 1."""
    return next((number for number in numbers if not 0 <= number < count), None)


SEARCHED = (
    *("sampling", "stop", "logit_bias", "presence_penalty", "frequency_penalty"),
    *("logprobs", "prompt_logprobs", "guide", "want", "edits"),
)
"""Settings that a search with beams does not take."""


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
    of the likeliest tokens in each place, ``scored`` for the token's own log-probability,
    ``prompt_logprobs`` for the prompt's tokens' own log-probabilities and so many of the likeliest
    in their places. ``guide`` makes a Guide for each continuation. With ``beams`` the likeliest
    whole texts are searched for, that many at a time, as ``generation.beam`` finds them: the ``n``
    best come once all is found, ranked by ``length_penalty``. The engine is fair between
    ``client``s. ``want`` are the paths (with * and ?) of values inside the model to be recorded,
    for this request's own tokens; ``edits`` (sight.edits) change them. Others in the same step keep
    their bits. Of what stands before place ``since`` nothing is recorded or scored, and what pages
    hold of it is not read again. Raises UserError for what means nothing whatever the model.
    """

    tokens: Seq[int]
    source: Seq[int] | None = None
    sampling: Sampling = Sampling()
    max_new: int | None = 256
    seed: int | None = None
    n: int = 1
    first: int = 0
    stop: Seq[str] = ()
    stop_tokens: Seq[int] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guide: Callable[[], Guide] | None = None
    client: str = ""
    want: Seq[str] = ()
    edits: Seq[ModelEdit | str] = ()
    since: int = 0
    beams: int | None = None
    length_penalty: float = 1.0
    scored: bool = True

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

    tokens: Seq[int]
    segments: Seq[int] | None = None  # of a pair of texts, one for each token (BERT)
    output: Encoded = "vector"
    positions: Seq[int] | None = None
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


class Channel:
    """Events of requests on their way from the engine's thread to the one thread (``for``) or task
    (``async for``) that reads them, each with its request's handle; it ends with the requests. A task
    that waits is spared an event that ``write`` writes for it, in the engine's thread."""

    def __init__(self) -> None:
        self.reading = 0  # requests whose last event was not read
        self._events: deque[tuple[RequestHandle, Event]] = deque()
        self._condition = threading.Condition()
        self._ready: asyncio.Future[None] | None = None  # of a task that waits
        self.write: Callable[[RequestHandle, Event], bool] = lambda handle, event: False

    def put(self, handle: RequestHandle, event: Event) -> None:
        """Queues an event, from the engine's thread."""
        with self._condition:
            if self._ready is not None and self.write(handle, event):
                return
            self._events.append((handle, event))
            self._condition.notify_all()
            ready, self._ready = self._ready, None
        if ready is not None:
            WAKING.futures.append(ready)
            if not WAKING.together:
                wake()

    @property
    def unread(self) -> int:
        """Number of events that wait for the reader."""
        return len(self._events)

    def fail(self, handle: RequestHandle, error: Exception) -> None:
        """Puts an error in the place of all events that wait."""
        with self._condition:
            self._events.clear()
        self.put(handle, Event(0, finish_reason="error", error=error))

    def _take(self) -> tuple[RequestHandle, Event] | None:
        """The next event; None where there is none yet."""
        if not self._events:
            return None
        handle, event = self._events.popleft()
        handle.exhausted = event.usage is not None
        self.reading -= handle.exhausted
        return handle, event

    def __iter__(self) -> Iterator[tuple[RequestHandle, Event]]:
        while self.reading:
            with self._condition:
                self._condition.wait_for(lambda: self._events)
                item = self._take()
            if item is not None:
                yield item

    async def __aiter__(self) -> AsyncIterator[tuple[RequestHandle, Event]]:
        loop = asyncio.get_running_loop()
        while self.reading:
            with self._condition:
                item = self._take()
                if item is None:
                    ready = self._ready = loop.create_future()
            if item is None:
                try:
                    await ready
                finally:
                    with self._condition:  # nothing is written for a task that was cancelled
                        self._ready = None
            else:
                yield item


class Waking(threading.local):
    """Futures of the tasks to wake; ``together``: at the end of a step, one call for each loop."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[None]] = []
        self.together = False

    def __enter__(self) -> None:
        self.together = True

    def __exit__(self, *_: object) -> None:
        """Wakes the tasks that wait for events of this thread, when the block ends."""
        self.together = False
        wake()


WAKING = Waking()


def wake() -> None:
    """Wakes the tasks of this thread's events."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in WAKING.futures:
        loops.setdefault(future.get_loop(), []).append(future)
    WAKING.futures.clear()
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_set_ready, futures)


def _set_ready(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class RequestHandle:
    """A request under way: iterate over its events, where its ``channel`` is its own.

    ``prompt_logprobs`` and ``output`` are there when the first event is; ``seed`` repeats the
    request; ``prompt`` are the prompt's ids with its edits applied. ``records`` are all recorded
    values, by continuation and path, once ``result`` has given all: over the T tokens that were
    read, prompt first, the last one that was drawn never.
    """

    def __init__(
        self,
        request: Request | Encode,
        cancel: Callable[[RequestHandle], None],
        seed: int = 0,
        channel: Channel | None = None,
    ) -> None:
        self.request = request
        self.channel = channel or Channel()
        self.channel.reading += 1
        self.seed = seed
        self.client = request.client
        self.prompt_logprobs: list[TokenLogprob] | None = None
        self.output: Tensor | None = None
        self.prompt: Seq[int] = request.tokens
        self.records: dict[int, dict[str, Tensor]] = {}
        self.hypotheses: list[Hypothesis] = []  # of a search with beams, once it has ended
        self.start_time: float | None = None  # time.monotonic() when it stopped waiting
        # of the engine's thread: a sequence for each continuation or beam
        self.sequences: list[Sequence] = []
        self.forks: list[Sequence] = []  # those that start once the prompt is computed
        self.search: Any = None  # a BeamSearch
        self.scores: dict[int, TokenLogprob] = {}  # of the prompt, by place
        self.ended = False
        self._cancel = cancel
        self.exhausted = False  # its last event was read

    @property
    def handle(self) -> RequestHandle:
        """Itself, where a step works for requests rather than chunks."""
        return self

    @property
    def is_open(self) -> bool:
        return not self.ended

    @property
    def continuations(self) -> list[Sequence]:
        """The sequences that are answered: of a search as many as its best, of others all."""
        return self.sequences[: self.request.n]

    @property
    def usage(self) -> Usage:
        cached = self.sequences[0].cached if self.sequences else 0
        generated = sum(len(sequence.tokens) for sequence in self.sequences)
        return Usage(len(self.request.tokens), cached, generated)

    def cancel(self) -> None:
        """End it at the engine's next step; its continuations finish as "cancelled". Harmless when
        it has ended."""
        self._cancel(self)

    def put(self, event: Event) -> None:
        self.channel.put(self, event)

    def __iter__(self) -> Iterator[Event]:
        return (event for _, event in self.channel)

    def __aiter__(self) -> AsyncIterator[Event]:
        return (event async for _, event in self.channel)

    def result(self) -> Result:
        """Wait for the end and give all at once; raises what made the request fail."""
        return self.collect(list(self))

    def collect(self, events: Seq[Event]) -> Result:
        """Result of all events; raises what made the request fail."""
        completions = [Completion(index) for index in range(self.request.n)]
        usage = Usage(len(self.request.tokens), 0, 0)
        for event in events:
            if event.error is not None:
                raise event.error
            completion = completions[event.index]
            completion.text += event.text
            if event.token is not None:
                completion.tokens.append(event.token)
                completion.top.append(event.top)
            if event.logprob is not None:
                completion.logprobs.append(event.logprob)
            if event.finish_reason is not None:
                completion.finish_reason = event.finish_reason
                completion.stopped_by = event.stopped_by
            usage = event.usage or usage
        for index in range(len(completions) if self.request.want else 0):
            pieces = [event.records for event in events if event.index == index and event.records]
            self.records[index] = concatenate(pieces).values if pieces else {}
        return Result(completions, usage, self.prompt_logprobs, self.output)


class PromptLookup:
    """Prompt lookup: proposes the tokens that followed the last occurrence of the text's final few
    tokens (Saxena 2023).

    Good for texts that repeat their prompt: summaries, code, translations of lists. A text whose
    guesses are wrong gets none for a while.
    """

    def __init__(self, most: int = 7) -> None:
        self.most = most
        self.share = 0.5  # of the guesses that were right, lately
        self._pause = 0
        # where what followed two tokens begins, each time
        self._after: dict[tuple[int, int], list[int]] = {}
        self._known = 1  # tokens before this place are in it

    def propose(self, tokens: Seq[int], room: int) -> list[int]:
        """At most ``room`` tokens that may follow the same text, grown; none where nothing like its
        end came before."""
        for place in range(self._known, len(tokens) - 1):
            self._after.setdefault((tokens[place - 1], tokens[place]), []).append(place + 1)
        self._known = max(self._known, len(tokens) - 1)
        if self._pause:
            self._pause -= 1
            return []
        most = min(room, self.most if self.share >= 0.5 else 2)
        starts = (
            self._after.get((tokens[-2], tokens[-1]), [])[-TRIED:]
            if most > 0 and len(tokens) > 1
            else []
        )
        if not starts:
            return []
        start = max(starts, key=lambda start: (_match_length(tokens, start), start))
        follows = tokens[start : start + most]
        return [follows[place % len(follows)] for place in range(most)]  # a short one is a loop

    def learn(self, drafted: int, accepted: int) -> None:
        """Updates the share of accepted guesses."""
        if drafted:
            self.share = 0.75 * self.share + 0.25 * accepted / drafted
            if accepted == 0 and self.share < 0.25:
                self._pause = PATIENCE


def _match_length(tokens: Seq[int], start: int) -> int:
    """Number of tokens before ``start`` that equal those at the end, LONGEST at most."""
    size = 0
    while size < min(LONGEST, start) and tokens[start - 1 - size] == tokens[-1 - size]:
        size += 1
    return size


class Sequence(Continuation):
    """One continuation or beam of a request: ``ids`` (prompt and ``tokens``), of which the first
    ``computed`` are in ``pages``, and everything that decides the next token.

    Random numbers come one for each place: other requests change nothing. What takes time is
    computed when it is first needed, in the engine's thread: whoever submits a request does not
    wait for it.

    ``cache_key`` is what its keys depend on beside its ids. From place ``recompute_from`` on cached
    pages are not reused (None: the last token alone is computed). The first ``unsplit`` tokens go
    into one forward pass. ``fork_parent`` has the same prompt: its computed tokens, to the middle
    of a page, are copied while it still runs. Layers with windows have freed the first
    ``evicted_pages``. ``draft`` are guessed next tokens. ``cached`` tokens were found in the pages
    of others at admission. ``source`` are the encoder's ids, ``look`` records or edits it.
    """

    def __init__(
        self,
        handle: RequestHandle,
        index: int = 0,
        max_tokens: int = 0,
        eos: frozenset[int] = frozenset(),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        request = handle.request
        assert isinstance(request, Request)
        super().__init__(request.tokens, eos, max_tokens, "length", tokenizer, request.stop)
        self.handle = handle
        self.request = request
        self.index = index
        self.client = request.client
        self.ids = [*request.tokens]
        self.source = None if request.source is None else tuple(request.source)
        self.cache_key: Hashable = self.source
        self.recompute_from: int | None = None
        self.look: Look | None = None
        self.fork_parent: Sequence | None = None
        self.number = -1  # in the order of arrival; -1: not scheduled
        self.started = False
        self.unsplit = self.computed = self.cached = self.evicted_pages = 0
        self.pages: list[int] = []
        self.draft: list[int] = []
        self.counts: Counter[int] = Counter()
        self.lookup: PromptLookup | None = None
        self._uniform: list[float] = []

    @property
    def remaining(self) -> int:
        """Number of ids that are not in pages yet."""
        return len(self.ids) - self.computed

    def fork(self, parent: Sequence) -> Sequence:
        """Itself, another continuation of the prompt of ``parent``, with the values recorded so
        far."""
        self.fork_parent = parent
        if parent.look is not None and self.look is not None:
            self.look.next = parent.look.next
            self.look.pieces = [*parent.look.pieces]
            self.recompute_from = parent.look.next
        return self

    def take_records(self) -> RecordedValues | None:
        """Values recorded since the last call; None where nothing is recorded."""
        if self.look is None or not self.look.pieces:
            return None
        pieces = self.look.pieces
        self.look.pieces = []
        return concatenate(pieces)

    def forget_pages(self) -> None:
        """Leaves all pages: the sequence will be computed again."""
        self.pages = []
        self.computed = 0
        self.evicted_pages = 0
        self.draft = []

    @cached_property
    def guide(self) -> Guide | None:
        return self.request.guide() if self.request.guide is not None else None

    @cached_property
    def is_adjusted(self) -> bool:
        """True where the request changes logits: by bias, penalties or guide."""
        request = self.request
        penalty = request.presence_penalty or request.frequency_penalty
        return bool(request.logit_bias or penalty or request.guide)

    @cached_property
    def bias(self) -> tuple[Tensor, Tensor]:
        """Token ids of the request's logit_bias, and what is added to their logits (fp32)."""
        values = self.request.logit_bias
        return torch.tensor([*values]), torch.tensor([*values.values()], dtype=torch.float32)

    @cached_property
    def _rng(self) -> torch.Generator:
        request = self.request
        prompt = request.tokens if request.source is None else request.source
        return random_generator(self.handle.seed, request.first + self.index, prompt)

    def uniform(self, place: int) -> float:
        """The number in [0, 1) that draws the token in this place."""
        while len(self._uniform) <= place:
            self._uniform += torch.rand(AHEAD, generator=self._rng).tolist()
        return self._uniform[place]

    def adjusted(self, logits: Tensor) -> Tensor:
        """One row of logits (V,) as bias, penalties and guide change it; the same tensor where
        nothing is asked."""
        request = self.request
        if request.logit_bias:
            ids, values = self.bias
            logits = logits.index_add(0, ids.to(logits.device), values.to(logits.device))
        if self.counts and (request.presence_penalty or request.frequency_penalty):
            logits = logits.clone()
            ids = torch.tensor([*self.counts], device=logits.device)
            repeats = torch.tensor([*self.counts.values()], device=logits.device)
            logits[ids] -= request.presence_penalty + request.frequency_penalty * repeats
        allowed = self.guide(self.tokens) if self.guide is not None else None
        if allowed is not None:
            forbidden = torch.ones_like(logits, dtype=torch.bool)
            forbidden[: len(allowed)] = ~allowed.to(logits.device)[: len(logits)]
            logits = logits.masked_fill(forbidden, -math.inf)
        return logits

    def add(self, token: int, logprob: float | None, top: Likely) -> Event:
        """Appends a token; ``finish`` is set when it was the last."""
        self.ids.append(token)
        self.counts[token] += 1
        text = self.append(token)
        reason: Any = "stop" if self.finish == "eos" else self.finish
        logprob = logprob if self.request.scored else None  # others of the step may have asked
        return Event(self.index, token, text, logprob, top, reason, self.stopped_by)

    def end(self, reason: FinishReason) -> Event:
        """Ends without another token."""
        self.finish = reason
        text = self.writer.close() if self.writer else ""
        return Event(self.index, text=text, finish_reason=reason)


@dataclass(eq=False)
class SequenceChunk:
    """Tokens of one sequence in a forward pass, from place ``start`` on, the last ``drafted`` of
    them guesses.

    ``finishes``: the next token can be sampled after it. The ``logits`` (P, V) of ``places`` are
    needed, rows of the step's from ``first_row`` on; ``next_token`` is sampled from them.
    """

    sequence: Sequence
    start: int
    tokens: list[int]
    drafted: int
    finishes: bool
    places: Seq[int] = ()
    step_logits: Tensor = NO_LOGITS
    first_row: int = 0
    is_finite: bool = True  # all logits of the step were
    adjusted: Tensor = NO_LOGITS  # (V,), of the next token as the request changes them
    next_token: tuple[int, float | None, Likely] = (0, None, ())
    accepted: int = 0  # guesses that were right
    guess_accepted: bool = True  # the last of them was

    @property
    def handle(self) -> RequestHandle:
        return self.sequence.handle

    @property
    def is_open(self) -> bool:
        """True while its sequence has not ended and its pages were not taken away."""
        sequence = self.sequence
        return not sequence.handle.ended and bool(sequence.pages)

    @property
    def logits(self) -> Tensor:
        return self.step_logits[self.first_row : self.first_row + len(self.places)]

    @property
    def next_logits(self) -> Tensor:
        """Logits (V,) of the next token, after the accepted guesses."""
        return self.logits[len(self.places) - 1 - self.drafted + self.accepted]


def sample_with_logprobs(
    rows: Seq[Sequence], logits: Tensor, adjusted: Tensor, vocab_size: int | None
) -> list[tuple[int, float | None, Likely]]:
    """Each row's next token with its log-probability (None where nobody asks) and the likeliest in
    its place, from fp32 logits (R, V)."""
    tokens = sample(rows, adjusted, vocab_size)
    logprobs: list[float | None] = [None] * len(rows)
    if any(row.request.scored for row in rows):
        logprobs = log_probability(logits, tokens).tolist()
    most = max((row.request.logprobs or 0 for row in rows), default=0)
    top: list[Likely] = [()] * len(rows)
    if most:
        best = zip(rows, likeliest(logits, vocab_size, most), strict=True)
        top = [tuple(likely[: row.request.logprobs or 0]) for row, likely in best]
    return list(zip(tokens.tolist(), logprobs, top, strict=True))


def sample(rows: Seq[Sequence], logits: Tensor, vocab_size: int | None) -> Tensor:
    """Sampled token (R,) of each row from logits (R, V).

    Only the first ``vocab_size`` ids are drawn; rows of equal Sampling are drawn together.
    """
    groups: dict[Sampling, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.request.sampling, []).append(place)
    tokens = [0] * len(rows)
    for sampling, places in groups.items():
        group = [rows[place] for place in places]
        uniform = mask = None
        if not sampling.greedy:
            random_numbers = [row.uniform(len(row.tokens)) for row in group]
            uniform = torch.tensor(random_numbers, device=logits.device)
        group_logits = logits if len(groups) == 1 else logits[places]
        if sampling.repetition_penalty != 1:
            mask = token_mask([[*row.request.tokens, *row.counts] for row in group], group_logits)
        chosen = choose(group_logits, uniform, mask, sampling, vocab_size)
        if len(groups) == 1:
            return chosen
        for place, token in zip(places, chosen.tolist(), strict=True):
            tokens[place] = token
    return torch.tensor(tokens, device=logits.device)

"""The engine: requests in from any thread, events out, one thread that computes a step at a time.

submit --> arrivals --> worker: plan --> read --> draw --> events
              ^                  |                 |
           cancel                +-- another step -+
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core import config
from ...core.errors import UserError, must_be_known, need
from ...core.generation.prompt import end_tokens
from ...core.nn import Model
from ...sight.looking import must_match
from ...sight.reading import Reading, as_edit_list, build_hooks, one_token
from .draft_model import check_draft
from .memory import MemoryPlan, plan_memory
from .recording import Look
from .request import (
    Encode,
    EngineClosed,
    Event,
    QueueFull,
    Request,
    RequestTooLarge,
    Stats,
    TokenLogprob,
    first_outside,
)
from .sequence import BeamSearch, RequestHandle, Sequence
from .worker import Worker

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

ENDED = "The engine has ended; try another one, or later."


class Engine:
    """Answers requests for one model, which nothing else may train or change meanwhile.

    ``max_context`` (tokens of prompt and continuation; None: the model's), ``max_sequences``
    (continuations at once), ``max_queue`` (continuations that may wait; one more raises QueueFull)
    and ``memory`` (bytes for keys and values; None: half of what is free, at most what all these
    can need) bound it; ``room`` says what was taken. ``step_tokens`` are read at most in one pass,
    so that long prompts do not hold up others. ``lookup``: guess tokens that stand earlier in a
    text; ``draft``: let a small decoder of the same vocabulary guess. Guesses change no answer.
    Clients have equal shares: one with fewer continuations than another comes first, and takes the
    other's newest place. A request that fails ends alone. Close it, or use it in a ``with``. Raises
    UserError where memory does not hold one text.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None = None,
        *,
        max_context: int | None = None,
        max_sequences: int = 32,
        max_queue: int = 256,
        memory: int | None = None,
        step_tokens: int = 512,
        lookup: bool = True,
        draft: Model | None = None,
    ) -> None:
        need(max_queue >= 1, f"max_queue is {max_queue}; give 1 or more.")
        need(step_tokens >= 1, f"step_tokens is {step_tokens}; give 1 or more.")
        self.model = model
        self.tokenizer = tokenizer
        self.max_queue = max_queue
        if draft is not None:
            check_draft(draft, model)
        self.memory_plan: MemoryPlan = plan_memory(
            model, max_context, max_sequences, memory, draft, step_tokens
        )
        self.max_context = self.memory_plan.context
        self.step_tokens = step_tokens
        self.vocab_size = None if tokenizer is None else tokenizer.size
        self.lookup = (lookup or draft is not None) and self.memory_plan.rewinds
        self._worker = Worker(
            model, self.memory_plan, self.vocab_size, step_tokens, self.lookup, self._closed
        )
        self._open: dict[RequestHandle, None] = {}  # in the order of arrival
        self._arrivals: deque[RequestHandle] = deque()
        self._cancelled: set[RequestHandle] = set()
        self._work = threading.Condition()
        self._requests = self._refused = 0
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="glassformer-engine", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------- from any thread

    def check_size(self, requests: Seq[Request | Encode]) -> None:
        """RequestTooLarge where these, submitted one after the other, could never wait together."""
        size = sum(request.size for request in requests)
        problem = (
            f"A request of {size:,} continuations never fits in the queue of {self.max_queue:,}"
        )
        if size > self.max_queue:
            raise RequestTooLarge(f"{problem}; send fewer prompts, or a smaller n.")

    def submit(self, request: Request | Encode) -> RequestHandle:
        """Take a request; its events come by the handle. UserError for what this model cannot
        answer; QueueFull."""
        self.check_size([request])
        if isinstance(request, Encode):
            check_encode(request, self.model, self.max_context)
        else:
            check_request(
                request, self.model, self.tokenizer, self.max_context, self.memory_plan.first
            )
        seed = int(torch.randint(2**31, ())) if request.seed is None else request.seed
        handle = RequestHandle(request, self.cancel, seed)
        if isinstance(request, Request):
            self._add_sequences(handle, request)
        with self._work:
            if self._closing:
                raise EngineClosed(ENDED)
            self._check_queue(request)
            self._open[handle] = None
            self._arrivals.append(handle)
            self._requests += 1
            self._work.notify()
        return handle

    def _add_sequences(self, handle: RequestHandle, request: Request) -> None:
        """Creates a sequence for each continuation or beam of a request. Raises UserError for edits
        and recorded paths that the model does not have."""
        tokenizer = self.tokenizer
        stop_tokens = request.stop_tokens
        limit = self.max_context - len(request.tokens) + 1
        limit = limit if request.max_new is None else min(limit, request.max_new)
        eos = end_tokens(None, tokenizer) if stop_tokens is None else frozenset(stop_tokens)
        handle.sequences = [
            Sequence(handle, index, limit, eos, tokenizer) for index in range(request.size)
        ]
        if request.beams is not None:
            handle.search = BeamSearch(handle, tokenizer)
        else:
            handle.forks = handle.sequences[1:]
        if request.prompt_logprobs is not None:
            handle.sequences[0].recompute_from = request.since
        if request.want or request.edits:
            prepare_looks(handle, self.model, tokenizer, self.shapes, self.step_tokens)

    def _check_queue(self, request: Request | Encode) -> None:
        """QueueFull where as many wait as may; a client with less than its share of the queue is
        let in."""
        waiting = Counter[str]()
        for handle in self._open:
            waiting[handle.client] += handle.request.size if handle.start_time is None else 0
        waiting[request.client] += request.size
        share = self.max_queue // len(+waiting)
        if waiting.total() > self.max_queue and waiting[request.client] > share:
            self._refused += 1
            already_waiting = waiting.total() - request.size
            raise QueueFull(
                f"{already_waiting} continuations are waiting, and {self.max_queue} may; try again later."
            )

    def cancel(self, handle: RequestHandle) -> None:
        """End a request at the next step; harmless for one that has ended."""
        with self._work:
            if handle in self._open:
                self._cancelled.add(handle)
                self._work.notify()

    def score(self, tokens: Seq[int], top: int = 0) -> list[TokenLogprob]:
        """The log-probability of each token after those before it, with the ``top`` likeliest
        there."""
        handle = self.submit(Request(tokens, max_new=0, prompt_logprobs=top))
        return handle.result().prompt_logprobs or []

    def encode(self, request: Encode) -> Tensor:
        """Output of a whole text, as ``request.output`` names it."""
        output = self.submit(request).result().output
        assert output is not None
        return output

    def stats(self) -> Stats:
        """A copy of the numbers as they are now."""
        pools = self.memory_plan.pools
        with self._work:
            running = sum(handle.start_time is not None for handle in self._open)
            used = sum(pool.in_use * size for pool, size in pools)
            return replace(
                self._worker.stats,
                requests=self._requests,
                refused=self._refused,
                running=running,
                waiting=len(self._open) - running,
                preempted=self._worker.scheduler.preempted,
                pages_used=sum(pool.in_use for pool, _ in pools),
                pages_cached=sum(pool.cached for pool, _ in pools),
                pages_free=sum(pool.free for pool, _ in pools),
                used_share=used / sum(len(pool.users) * size for pool, size in pools),
            )

    def close(self) -> None:
        """Cancel what is under way and stop; returns when the thread has ended."""
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """True while it takes requests: not closed, its thread not ended."""
        return self._thread.is_alive() and not self._closing

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------ in the engine's own

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every path inside the model, with the shape of its value for one token."""
        return {path: tuple(value.shape) for path, value in one_token(self.model).items()}

    def _loop(self) -> None:
        try:
            while self._arrive():
                try:
                    self._worker.step()
                # of no request and no text: there is nobody whom it could spare
                except Exception as error:
                    self._worker.end_all(error)
        finally:  # whatever ended the thread, nobody waits for it
            with self._work:
                self._closing = True
                for handle in self._open:
                    ended = Event(0, finish_reason="error", error=EngineClosed(ENDED))
                    handle.put(replace(ended, usage=handle.usage))
                self._open.clear()

    def _arrive(self) -> bool:
        """Wait for something to do; False: the engine was closed and nothing is left."""
        with self._work:
            self._work.wait_for(lambda: self._open or self._closing)
            arrived = [*self._arrivals]
            self._arrivals.clear()
            ended = [*self._open] if self._closing else [*self._cancelled]
            self._cancelled.clear()
        for handle in arrived:
            self._worker.add_request(handle)
        for handle in ended:
            if handle in self._worker.requests:
                self._worker.end(handle, "cancelled")
        return bool(self._open) or not self._closing

    def _closed(self, handle: RequestHandle) -> None:
        with self._work:
            del self._open[handle]
            self._cancelled.discard(handle)


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
        isinstance(model.config, config.Decoder),
        "An engine looks inside decoders alone; use glassformer.look for this model.",
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


def check_request(
    request: Request, model: Model, tokenizer: Tokenizer | None, context: int, first: int
) -> None:
    """UserError for what this model cannot continue."""
    cfg = model.config
    _check_tokens(request.tokens, cfg.embed.vocab, context)
    if isinstance(cfg, config.Encoder) or cfg.head is None:
        raise UserError("This model cannot continue a text; use it to encode texts.")
    problem = f"this model reads its first {first} tokens in one go; give that many to begin with."
    need(len(request.tokens) >= first, problem)
    two = cfg.has_source
    need(
        two == (request.source is not None),
        f"This model {'needs a' if two else 'takes no'} source.",
    )
    if request.source is not None:
        vocab = config.source_embed(cfg).vocab
        _check_tokens(request.source, vocab, context, "tokens of source")
    need(
        not request.stop or tokenizer is not None,
        "Stop strings need a tokenizer; give the engine one.",
    )
    wrong = first_outside(request.logit_bias, cfg.embed.vocab)
    need(
        wrong is None,
        f"logit_bias names token {wrong}; this model knows 0 to {cfg.embed.vocab - 1}.",
    )
    has_output = request.prompt_logprobs is not None or bool(request.want)
    need(
        request.max_new != 0 or has_output,
        "max_new is 0; ask for prompt_logprobs or want something then.",
    )


def check_encode(request: Encode, model: Model, context: int) -> None:
    """UserError for what this model cannot say of a text."""
    cfg = model.config
    _check_tokens(request.tokens, cfg.embed.vocab, context)
    need(
        not cfg.has_source,
        "An encoder-decoder has no vector for a text; use another.",
    )
    labelled = cfg.pool is not None and bool(cfg.pool.labels)
    need(
        request.output != "labels" or labelled,
        "This model has no labels for texts; train it with Classify.",
    )
    need(
        request.output != "tags" or model.token_head is not None,
        "This model has no labels for tokens; train with Tag.",
    )
    need(request.output != "logits" or cfg.head is not None, "This model has no head over tokens.")
    segments = cfg.embed.segments
    need(
        request.segments is None or bool(segments),
        "This model reads one text, not pairs; leave out segments.",
    )
    wrong = first_outside(request.segments or (), segments)
    need(
        wrong is None,
        f"Segment {wrong} is not one of this model's {segments}; give 0 to {segments - 1}.",
    )


def _check_tokens(tokens: Seq[int], vocab: int, context: int, text: str = "tokens") -> None:
    need(bool(tokens), "The prompt is empty; give at least one token.")
    must_be_known(tokens, vocab)
    length = len(tokens)
    need(length <= context, f"{length} {text} are more than the {context} allowed; shorten them.")

"""The engine: requests in from any thread, events out, one thread that computes a step at a time.

submit --> arrivals --> worker: plan --> read --> draw --> events
              ^                  |                 |
           cancel                +-- another step -+

A step is one forward pass for all chunks, one sampling for all rows, the remaining work request by request.

    plan -> select -> forward -> check -> forks -> adjust -> sample -> append -> done -> propose
            each      all        each     each     each      all       each      each    each

What one request raises, ``Exception`` or not, ends it alone. ``_map_isolated`` works on one after
the other; ``_run_batched`` on all at once and, where that fails, on each alone. The scheduler names
the sequence at which a plan failed. Where a change of its pages stopped half-way, all pages are
freed and the open sequences are computed again. Where no sequence is to blame the plan is made once
more, and after that without the newest.

P places of a chunk, V vocabulary.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ...core.errors import UserError, need
from ...core.generation.sample import likeliest
from ...core.nn import Model
from ...core.nn.finite import is_finite, must_be_finite
from ...sight.reading import Shapes, shapes_of
from .beam_search import BeamSearch
from .encoder import check_encode, encode
from .looks import prepare_looks
from .page_memory import MemoryPlan, plan_memory
from .results import Event, FinishReason, TokenLogprob, as_exception
from .runner import PagedRunner, logit_positions, record_scores, wants_scores
from .scheduler import FairQueue, Scheduler
from .sequence import (
    WAKING,
    Channel,
    Encode,
    EngineClosed,
    PromptLookup,
    QueueFull,
    Request,
    RequestHandle,
    RequestTooLarge,
    Sequence,
    SequenceChunk,
    check_tokens,
    first_outside,
    sample_with_logprobs,
)

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

I = TypeVar("I", SequenceChunk, RequestHandle)  # noqa: E741
ENDED = "The engine has ended; try another one, or later."


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


class Engine:
    """Answers requests for one model in one batch; batching never changes a response.

    Nothing else may train or change the model meanwhile. Clients have equal shares: one with fewer
    continuations than another comes first, and takes the other's newest place. A request that fails
    ends alone. Close the engine, or use it in a ``with``; ``memory_plan`` says what memory was taken.

    Args:
        model: The model that answers.
        tokenizer: The tokenizer that came with it; None where requests are ids.
        max_context: The most tokens of prompt and continuation; None is the model's context.
        max_sequences: Continuations computed at once.
        max_queue: Continuations that may wait; one more raises QueueFull.
        memory: Bytes for keys and values; None is half of what is free, at most what all need.
        step_tokens: The most tokens of one forward pass, so that a long prompt holds up nobody.
        lookup: Guess tokens that stand earlier in a text; guesses change no answer.

    Raises:
        UserError: The memory does not hold one text, or a number is out of range.

    Example:
        >>> request = glassformer.engine.Request(tokenizer.encode("Once upon a time"))
        >>> with glassformer.Engine(model, tokenizer) as engine:
        ...     print(engine.submit(request).result().text)
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
    ) -> None:
        need(max_queue >= 1, f"max_queue is {max_queue}; give 1 or more.")
        need(step_tokens >= 1, f"step_tokens is {step_tokens}; give 1 or more.")
        self.model = model
        self.tokenizer = tokenizer
        self.max_queue = max_queue
        self.memory_plan: MemoryPlan = plan_memory(
            model, max_context, max_sequences, memory, step_tokens
        )
        self.max_context = self.memory_plan.context
        self.step_tokens = step_tokens
        self.vocab_size = None if tokenizer is None else tokenizer.size
        self.lookup = lookup and self.memory_plan.rewinds
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

    def submit(self, request: Request | Encode, channel: Channel | None = None) -> RequestHandle:
        """Take a request; its events come by the handle, or by a ``channel`` that several share.
        UserError for what this model cannot answer; QueueFull."""
        self.check_size([request])
        if isinstance(request, Encode):
            check_encode(request, self.model, self.max_context)
        else:
            check_request(
                request, self.model, self.tokenizer, self.max_context, self.memory_plan.first
            )
        seed = int(torch.randint(2**31, ())) if request.seed is None else request.seed
        handle = RequestHandle(request, self.cancel, seed, channel)
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
        eos = frozenset() if tokenizer is None else tokenizer.end_ids
        if stop_tokens is not None:
            eos = frozenset(stop_tokens)
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
                f"{already_waiting} continuations are waiting, and {self.max_queue} may; try "
                "again later."
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
    def shapes(self) -> Shapes:
        """Every path inside the model, with the shape of its value for one token."""
        return shapes_of(self.model)

    def _loop(self) -> None:
        try:
            while self._arrive():
                with WAKING:
                    try:
                        self._worker.step()
                    # of no request and no text: there is nobody whom it could spare
                    except BaseException as error:
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
            while not (self._open or self._closing):
                self._work.wait()
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


def check_request(
    request: Request, model: Model, tokenizer: Tokenizer | None, context: int, first: int
) -> None:
    """UserError for what this model cannot continue."""
    cfg = model.config
    check_tokens(request.tokens, cfg.embed.vocab, context)
    if cfg.is_encoder or cfg.head is None:
        raise UserError("This model cannot continue a text; use it to encode texts.")
    problem = f"this model reads its first {first} tokens in one go; give that many to begin with."
    need(len(request.tokens) >= first, problem)
    two = cfg.has_source
    need(
        two == (request.source is not None),
        f"This model {'needs a' if two else 'takes no'} source.",
    )
    if request.source is not None:
        vocab = cfg.input_embed.vocab
        check_tokens(request.source, vocab, context, "tokens of source")
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
        "max_new is 0, so nothing is generated; give 1 or more, or ask for prompt_logprobs.",
    )


class Worker:
    """Work of the engine's thread on ``requests``; ``closed`` is called for each that has ended,
    before its client hears of it."""

    def __init__(
        self,
        model: Model,
        plan: MemoryPlan,
        vocab_size: int | None,
        step_tokens: int,
        lookup: bool,
        closed: Callable[[RequestHandle], None],
    ) -> None:
        self.model = model
        self.reader = plan.model
        self.vocab_size = vocab_size
        self.step_tokens = step_tokens
        self.lookup = lookup
        self.closed = closed
        self.runner = plan.runner()
        self.scheduler = Scheduler(
            plan.pool,
            plan.size,
            budget=step_tokens,
            max_num_seqs=plan.sequences,
            first=plan.first,
            released=self._released,
            copy=self.runner.copy if isinstance(self.runner, PagedRunner) else None,
            windows=plan.windows,
        )
        self.encode_queue = FairQueue[RequestHandle]()
        self.requests: set[RequestHandle] = set()
        self.stats = Stats()
        self.failed = False  # the last plan did, at no sequence

    def add_request(self, handle: RequestHandle) -> None:
        self.requests.add(handle)
        self._map_isolated([handle], self._enqueue)

    def step(self) -> None:
        """Encodes whole texts, then computes a chunk of every planned sequence."""
        if self.encode_queue:
            self._encode()
        chunks = self._map_isolated(self._plan(), self._select_logits)
        if not chunks:
            return
        chunks = self._run_batched(chunks, self._forward)
        self.stats.steps += 1
        chunks = self._map_isolated(chunks, self._check)
        finishing = [chunk for chunk in chunks if chunk.finishes]
        self._map_isolated([chunk for chunk in chunks if not chunk.finishes], self._done)
        self._draw([chunk for chunk in finishing if chunk.handle.search is None])
        searching = [chunk for chunk in finishing if chunk.handle.search is not None]
        self._map_isolated(searching, self._search)

    def end(
        self, handle: RequestHandle, reason: FinishReason, error: BaseException | None = None
    ) -> None:
        """Ends all continuations of a request here and now, whatever else goes wrong."""
        if handle.ended:
            return
        error = None if error is None else as_exception(error)
        going = [sequence for sequence in handle.continuations if sequence.finish is None]
        try:
            events = [sequence.end(reason) for sequence in going if error is None]
        except BaseException as end_error:
            self.end(handle, "error", end_error)
            return
        events = events or [Event(item.index, finish_reason=reason, error=error) for item in going]
        for sequence in going:
            sequence.finish = reason
        self._drop(handle)
        events = events or [Event(0, finish_reason=reason, error=error)]
        with suppress(BaseException):  # the client's own
            for event in events[:-1]:
                handle.put(event)
        self._close(handle, events[-1])

    def end_all(self, error: BaseException) -> None:
        """Last resort: ends every request; the engine goes on with new ones."""
        for handle in [*self.requests]:
            self.end(handle, "error", error)
        self._restart(())

    # ------------------------------------------------------------------ for one request, or for all

    def _map_isolated(self, items: Seq[I], work: Callable[[I], object]) -> list[I]:
        """Calls ``work`` for each item and returns those still open. An exception ends its own
        request alone."""
        for item in items:
            if item.is_open:
                try:
                    work(item)
                except BaseException as error:
                    self.end(item.handle, "error", error)
        # another row may have ended an earlier one's request
        return [item for item in items if item.is_open]

    def _run_batched(self, items: list[I], work: Callable[[Seq[I]], object]) -> list[I]:
        """Calls ``work`` for all items at once, or for each alone where that fails: too little
        memory, or one item at fault."""
        try:
            if items:
                work(items)
            return items
        except BaseException:
            return self._map_isolated(items, lambda item: work([item]))

    # ------------------------------------------------------------------------ a step, part by part

    def _enqueue(self, handle: RequestHandle) -> None:
        if handle.sequences:
            self.scheduler.add(handle.sequences[0])
        else:
            self.encode_queue.add(handle)

    def _plan(self) -> list[SequenceChunk]:
        scheduler = self.scheduler
        failed = self.failed
        self.failed = False
        try:
            return scheduler.plan()
        except BaseException as error:
            self.failed = scheduler.subject is None
            if self.failed and not failed:
                self._restart(())
                return []
            candidates = [scheduler.subject, *reversed(scheduler.running), *scheduler.waiting]
            blamed = next(sequence for sequence in candidates if sequence is not None)
            self.end(blamed.handle, "error", error)
            return []

    def _select_logits(self, chunk: SequenceChunk) -> None:
        self._mark_started(chunk)
        chunk.places = logit_positions(chunk)

    def _mark_started(self, item: SequenceChunk | RequestHandle) -> None:
        item.handle.start_time = item.handle.start_time or time.monotonic()

    def _forward(self, chunks: Seq[SequenceChunk]) -> None:
        logits = self.runner.forward(chunks)
        # the sum is not finite where a number is not; where a finite one overflows, all are looked at
        finite = math.isfinite(logits.sum().item())
        row = 0
        for chunk in chunks:
            chunk.step_logits = logits
            chunk.first_row = row
            chunk.is_finite = finite
            row += len(chunk.places)

    def _check(self, chunk: SequenceChunk) -> None:
        """Checks that logits are finite and records prompt scores. An edit at fault fails its own
        sequence alone."""
        look = chunk.sequence.look
        if look is not None and look.error is not None:
            raise look.error
        if not chunk.is_finite:
            edited = look is not None and bool(look.tape.edits) and not is_finite(chunk.logits)
            sentence = "The edits make NaN or infinite numbers of the logits; give smaller ones."
            need(not edited, sentence)
            must_be_finite(self.model, chunk.logits)
        record_scores(chunk, self.vocab_size)

    def _draw(self, chunks: list[SequenceChunk]) -> None:
        """Samples a token for each sequence, and one more for as long as its guesses are right."""
        drawing = self._map_isolated(chunks, self._start_forks)
        while drawing:
            drawing = self._run_batched(self._map_isolated(drawing, self._adjust), self._sample)
            drawing = self._map_isolated(drawing, self._append)
            drawing = [chunk for chunk in drawing if chunk.guess_accepted]
        self._map_isolated(chunks, self._propose)

    def _start_forks(self, chunk: SequenceChunk) -> None:
        """Starts the other continuations of its prompt; one of no tokens ends."""
        sequence = chunk.sequence
        forks = chunk.handle.forks
        while forks:
            self.scheduler.add(forks.pop().fork(sequence), first=True)
        if sequence.max_tokens == 0:
            count = sequence.request.logprobs
            top = list[tuple[int, float]]()
            if count:
                (top,) = likeliest(chunk.logits[-1:], self.vocab_size, count)
            self._finish(sequence, replace(sequence.end("length"), top=tuple(top)))

    def _adjust(self, chunk: SequenceChunk) -> None:
        if chunk.sequence.is_adjusted:
            chunk.adjusted = chunk.sequence.adjusted(chunk.next_logits)

    def _sample(self, chunks: Seq[SequenceChunk]) -> None:
        logits = chunks[0].step_logits
        if logits.shape[0] > len(chunks) or any(
            chunk.step_logits is not logits for chunk in chunks
        ):
            logits = torch.stack([chunk.next_logits for chunk in chunks])
        adjusted = logits
        if any(chunk.sequence.is_adjusted for chunk in chunks):
            rows = [c.adjusted if c.sequence.is_adjusted else c.next_logits for c in chunks]
            adjusted = torch.stack(rows)
        sequences = [chunk.sequence for chunk in chunks]
        tokens = sample_with_logprobs(sequences, logits, adjusted, self.vocab_size)
        for chunk, token in zip(chunks, tokens, strict=True):
            chunk.next_token = token

    def _append(self, chunk: SequenceChunk) -> None:
        """Appends the sampled token; ``guess_accepted`` where it was guessed, and another can be
        sampled."""
        event = chunk.sequence.add(*chunk.next_token)
        if event.finish_reason is not None:
            self._finish(chunk.sequence, event)
            return
        if chunk.sequence.look is not None:
            event = replace(event, records=chunk.sequence.take_records())
        chunk.handle.put(event)
        guess = chunk.tokens[len(chunk.tokens) - chunk.drafted + chunk.accepted :][:1]
        chunk.guess_accepted = guess == [event.token]
        chunk.accepted += chunk.guess_accepted

    def _done(self, chunk: SequenceChunk) -> None:
        self.scheduler.done(chunk)
        self.stats.drafted_tokens += chunk.drafted
        self.stats.accepted_tokens += chunk.accepted

    def _propose(self, chunk: SequenceChunk) -> None:
        """Ends the step of a sequence and guesses its next tokens by prompt lookup."""
        self._done(chunk)
        sequence = chunk.sequence
        if self.lookup and sequence.look is None:
            lookup = sequence.lookup = sequence.lookup or PromptLookup()
            lookup.learn(chunk.drafted, chunk.accepted)
            room = sequence.max_tokens - len(sequence.tokens) - 1
            sequence.draft = lookup.propose(sequence.ids, room)

    def _search(self, chunk: SequenceChunk) -> None:
        """Grows each beam by a token once all were computed, or finishes the search."""
        self._done(chunk)
        handle = chunk.handle
        search = chunk.handle.search
        assert search is not None
        search.logits[chunk.sequence.index] = chunk.logits[-1]
        if not search.ready:
            return
        grown: tuple[list[int], list[int]] | None = search.grow(self.vocab_size)
        if grown is not None:
            parents, tokens = grown
            self.scheduler.branch(search.sequences, parents, tokens, self.runner.copy)
            return
        for sequence in search.sequences:
            self.scheduler.drop(sequence)
        *events, last = search.finish()
        for event in events:
            handle.put(event)
        self._close(handle, last)

    def _encode(self) -> None:
        """Encodes whole texts, as many as fit in four steps' tokens."""
        handles = list[RequestHandle]()
        tokens = 0
        while (handle := self.encode_queue.peek()) is not None:
            tokens += len(handle.request.tokens)
            if handles and tokens > 4 * self.step_tokens:
                break
            handles.append(self.encode_queue.pop())
        handles = self._map_isolated(handles, self._mark_started)
        handles = self._run_batched(handles, self._run_encoder)
        self._map_isolated(handles, self._finish_encoding)

    def _run_encoder(self, handles: Seq[RequestHandle]) -> None:
        outputs = encode(self.reader, [handle.request for handle in handles])  # type: ignore[misc]
        for handle, output in zip(handles, outputs, strict=True):
            handle.output = output

    def _finish_encoding(self, handle: RequestHandle) -> None:
        assert handle.output is not None
        must_be_finite(self.model, handle.output)
        self._close(handle, Event(0, finish_reason="stop"))

    # ------------------------------------------------------------------------------ how they end

    def _finish(self, sequence: Sequence, event: Event) -> None:
        """Ends a continuation with this event."""
        event = replace(event, records=sequence.take_records())
        self.scheduler.drop(sequence)
        if any(item.finish is None for item in sequence.handle.continuations):
            sequence.handle.put(event)
        else:
            self._close(sequence.handle, event)

    def _close(self, handle: RequestHandle, last: Event) -> None:
        """Ends a request with its last event."""
        handle.ended = True
        self.requests.discard(handle)
        stats = self.stats
        usage = handle.usage
        reason = last.finish_reason
        stats.prompt_tokens += usage.prompt
        stats.cached_tokens += usage.cached
        stats.generated_tokens += usage.generated
        stats.finished += reason in ("stop", "length")
        stats.cancelled += reason == "cancelled"
        stats.failed += reason == "error"
        self.closed(handle)
        with suppress(BaseException):  # the client's own
            handle.put(replace(last, usage=usage))

    def _drop(self, handle: RequestHandle) -> None:
        """Drops the sequences of a request."""
        try:
            for sequence in handle.sequences if not self.scheduler.broken else ():
                self.scheduler.drop(sequence)
        except BaseException:
            self.scheduler.broken = True
        with suppress(ValueError):  # it was taken from the queue
            if not handle.sequences:
                self.encode_queue.remove(handle)
        if self.scheduler.broken:
            self._restart(handle.sequences)

    def _restart(self, without: Seq[Sequence]) -> None:
        """Frees all pages; open sequences are computed again."""
        self.runner.restart()
        self.scheduler.restart(without)

    def _released(self, sequence: Sequence) -> None:
        self.runner.released(sequence)
        if sequence.look is not None and not wants_scores(sequence):
            # what was recorded need not be computed again for it
            sequence.recompute_from = sequence.look.next

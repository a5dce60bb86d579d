"""Steps of the engine's thread: one forward pass for all chunks, one sampling for all rows, the
remaining work request by request.

    plan -> select -> forward -> check -> forks -> adjust -> sample -> append -> done -> propose
            each      all        each     each     each      all       each      each    each

An exception of one request ends that request alone. ``_map_isolated`` works on one request after
the other; ``_run_batched`` on all at once and, where that fails, on each alone. The scheduler names
the sequence at which a plan failed. Where a change of its pages stopped half-way, all pages are
freed and the open sequences are computed again. Where no sequence is to blame the plan is made once
more, and after that without the newest.

P places of a chunk, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import torch

from ...core.errors import need
from ...core.generation.sample import likeliest, log_probability
from ...core.nn import Model
from ...core.nn.finite import is_finite, must_be_finite
from .encoder import encode
from .memory import MemoryPlan
from .request import Event, FinishReason, Stats, TokenLogprob
from .runner import PagedRunner
from .scheduler import FairQueue, Scheduler
from .sequence import Chunk, PromptLookup, RequestHandle, Sequence, sample_with_logprobs

I = TypeVar("I", Chunk, RequestHandle)  # noqa: E741


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
        self, handle: RequestHandle, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """Ends all continuations of a request here and now, whatever else goes wrong."""
        if handle.ended:
            return
        going = [sequence for sequence in handle.continuations if sequence.finish is None]
        try:
            events = [sequence.end(reason) for sequence in going if error is None]
        except Exception as end_error:
            self.end(handle, "error", end_error)
            return
        events = events or [Event(item.index, finish_reason=reason, error=error) for item in going]
        for sequence in going:
            sequence.finish = reason
        self._drop(handle)
        events = events or [Event(0, finish_reason=reason, error=error)]
        with suppress(Exception):  # the client's own
            for event in events[:-1]:
                handle.put(event)
        self._close(handle, events[-1])

    def end_all(self, error: Exception) -> None:
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
                except Exception as error:
                    self.end(item.handle, "error", error)
        # another row may have ended an earlier one's request
        return [item for item in items if item.is_open]

    def _run_batched(self, items: list[I], work: Callable[[Seq[I]], object]) -> list[I]:
        """Calls ``work`` for all items at once, or for each alone where that fails: too little
        memory, or one item at fault."""
        with suppress(Exception):
            if items:
                work(items)
            return items
        return self._map_isolated(items, lambda item: work([item]))

    # ------------------------------------------------------------------------ a step, part by part

    def _enqueue(self, handle: RequestHandle) -> None:
        if handle.sequences:
            self.scheduler.add(handle.sequences[0])
        else:
            self.encode_queue.add(handle)

    def _plan(self) -> list[Chunk]:
        scheduler = self.scheduler
        failed = self.failed
        self.failed = False
        try:
            return scheduler.plan()
        except Exception as error:
            self.failed = scheduler.subject is None
            if self.failed and not failed:
                self._restart(())
                return []
            candidates = [scheduler.subject, *reversed(scheduler.running), *scheduler.waiting]
            blamed = next(sequence for sequence in candidates if sequence is not None)
            self.end(blamed.handle, "error", error)
            return []

    def _select_logits(self, chunk: Chunk) -> None:
        self._mark_started(chunk)
        chunk.places = logit_positions(chunk)

    def _mark_started(self, item: Chunk | RequestHandle) -> None:
        item.handle.start_time = item.handle.start_time or time.monotonic()

    def _forward(self, chunks: Seq[Chunk]) -> None:
        logits = self.runner.forward(chunks)
        finite = True
        if logits.numel():
            least, most = logits.aminmax()  # NaN where there is one
            finite = bool((most - least).isfinite())
        rows = torch.split(logits, [len(chunk.places) for chunk in chunks])
        for chunk, chunk_logits in zip(chunks, rows, strict=True):
            chunk.logits = chunk_logits
            chunk.is_finite = finite

    def _check(self, chunk: Chunk) -> None:
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

    def _draw(self, chunks: list[Chunk]) -> None:
        """Samples a token for each sequence, and one more for as long as its guesses are right."""
        drawing = self._map_isolated(chunks, self._start_forks)
        while drawing:
            drawing = self._run_batched(self._map_isolated(drawing, self._adjust), self._sample)
            drawing = self._map_isolated(drawing, self._append)
            drawing = [chunk for chunk in drawing if chunk.guess_accepted]
        chunks = self._map_isolated(chunks, self._done)
        self._map_isolated(chunks, self._propose)

    def _start_forks(self, chunk: Chunk) -> None:
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

    def _adjust(self, chunk: Chunk) -> None:
        chunk.adjusted = chunk.sequence.adjusted(chunk.next_logits)

    def _sample(self, chunks: Seq[Chunk]) -> None:
        logits = torch.stack([chunk.next_logits for chunk in chunks])
        adjusted = torch.stack([chunk.adjusted for chunk in chunks])
        sequences = [chunk.sequence for chunk in chunks]
        tokens = sample_with_logprobs(sequences, logits, adjusted, self.vocab_size)
        for chunk, token in zip(chunks, tokens, strict=True):
            chunk.next_token = token

    def _append(self, chunk: Chunk) -> None:
        """Appends the sampled token; ``guess_accepted`` where it was guessed, and another can be
        sampled."""
        event = chunk.sequence.add(*chunk.next_token)
        if event.finish_reason is not None:
            self._finish(chunk.sequence, event)
            return
        chunk.handle.put(replace(event, records=chunk.sequence.take_records()))
        guess = chunk.tokens[len(chunk.tokens) - chunk.drafted + chunk.accepted :][:1]
        chunk.guess_accepted = guess == [event.token]
        chunk.accepted += chunk.guess_accepted

    def _done(self, chunk: Chunk) -> None:
        self.scheduler.done(chunk)
        self.stats.drafted_tokens += chunk.drafted
        self.stats.accepted_tokens += chunk.accepted

    def _propose(self, chunk: Chunk) -> None:
        """Guesses the next tokens by prompt lookup."""
        sequence = chunk.sequence
        if self.lookup and sequence.look is None:
            lookup = sequence.lookup = sequence.lookup or PromptLookup()
            lookup.learn(chunk.drafted, chunk.accepted)
            room = sequence.max_tokens - len(sequence.tokens) - 1
            sequence.draft = lookup.propose(sequence.ids, room)

    def _search(self, chunk: Chunk) -> None:
        """Grows each beam by a token once all were computed, or finishes the search."""
        self._done(chunk)
        handle = chunk.handle
        search = chunk.handle.search
        assert search is not None
        search.logits[chunk.sequence.index] = chunk.logits[-1]
        if not search.ready:
            return
        grown = search.grow(self.vocab_size)
        if grown is not None:
            self.scheduler.branch(search.sequences, *grown, self.runner.copy)
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
        with suppress(Exception):  # the client's own
            handle.put(replace(last, usage=usage))

    def _drop(self, handle: RequestHandle) -> None:
        """Drops the sequences of a request."""
        try:
            for sequence in handle.sequences if not self.scheduler.broken else ():
                self.scheduler.drop(sequence)
        except Exception:
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


def wants_scores(sequence: Sequence) -> bool:
    """True for the first continuation of a request that asks for prompt log-probabilities."""
    return sequence.index == 0 and sequence.request.prompt_logprobs is not None


def logit_positions(chunk: Chunk) -> Seq[int]:
    """Places in a chunk whose logits are needed: of a scored prompt all from ``since``, else the
    last."""
    length = len(chunk.tokens)
    sequence = chunk.sequence
    request = chunk.sequence.request
    if sequence.look is not None and sequence.look.tape.watches("logits"):
        return range(length)
    if wants_scores(sequence) and chunk.start < len(request.tokens):
        return range(min(max(0, request.since - chunk.start), length - 1), length)
    return range(length - 1 - chunk.drafted, length) if chunk.finishes else ()


def record_scores(chunk: Chunk, vocab_size: int | None) -> None:
    """Records log-probabilities of a scored prompt's tokens from a chunk's logits."""
    handle = chunk.handle
    request = chunk.sequence.request
    start = chunk.start
    prompt = handle.prompt
    since = request.since
    count = request.prompt_logprobs
    last = len(prompt) - 1 - start  # the place in the chunk that the prompt's last token has
    if not wants_scores(chunk.sequence) or last < 0:
        return
    # rows of logits that are followed by a token of the prompt, by the place in the chunk
    rows = {p: row for row, p in enumerate(chunk.places) if p < last and start + p >= since}
    first = next(iter(rows.values()), 0)
    logits = chunk.logits[first : first + len(rows)]
    following = torch.tensor([prompt[start + place + 1] for place in rows], device=logits.device)
    logprobs = log_probability(logits, following.long()).tolist()
    top = likeliest(logits, vocab_size, count) if count else [() for _ in rows]
    for place, logprob, likely in zip(rows, logprobs, top, strict=True):
        at = start + 1 + place
        handle.scores[at] = TokenLogprob(prompt[at], logprob, tuple(likely))
    if len(handle.scores) == len(prompt) - 1 - since:
        scores = (handle.scores[place] for place in sorted(handle.scores))
        handle.prompt_logprobs = [TokenLogprob(prompt[since], None), *scores]

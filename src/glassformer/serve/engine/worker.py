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
from typing import Protocol, TypeVar

import torch

from ...core.errors import note
from ...core.generation.sample import likeliest
from ...core.nn import Model
from ...core.nn.finite import must_be_finite
from .draft import PromptLookup
from .draft_model import DraftModel
from .looking import edit_error, fork, logit_positions, record_scores, take_records, wants_scores
from .memory import MemoryPlan
from .request import Event, FinishReason, Stats
from .runner import PagedRunner, encode
from .scheduler import FairQueue, Scheduler
from .sequence import Chunk, RequestHandle, Sequence, sample_with_logprobs


class StepItem(Protocol):
    """Item of a step's work: a chunk or a whole request."""

    @property
    def handle(self) -> RequestHandle: ...

    @property
    def is_open(self) -> bool: ...


I = TypeVar("I", bound=StepItem)  # noqa: E741


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
        self.model, self.reader, self.vocab_size = model, plan.model, vocab_size
        self.step_tokens, self.lookup, self.closed = step_tokens, lookup, closed
        self.runner, drafter = plan.runner(), plan.drafter()
        self.drafts = None if drafter is None else DraftModel(drafter, vocab_size, step_tokens)
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
        events = [Event(item.index, finish_reason=reason, error=error) for item in going]
        if error is None:
            try:
                events = [sequence.end(reason) for sequence in going]
            except Exception as end_error:
                self.end(handle, "error", end_error)
                return
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
        scheduler, failed, self.failed = self.scheduler, self.failed, False
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

    def _mark_started(self, item: StepItem) -> None:
        item.handle.start_time = item.handle.start_time or time.monotonic()

    def _forward(self, chunks: Seq[Chunk]) -> None:
        logits = torch.split(self.runner.forward(chunks), [len(chunk.places) for chunk in chunks])
        for chunk, chunk_logits in zip(chunks, logits, strict=True):
            chunk.logits = chunk_logits

    def _check(self, chunk: Chunk) -> None:
        """Checks that logits are finite and records prompt scores."""
        if (error := edit_error(chunk.sequence, chunk.logits)) is not None:
            raise error
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
        chunks = self._map_isolated(chunks, self._propose_by_lookup)
        if self.drafts is not None:
            unseen = [chunk.sequence for chunk in chunks if chunk.sequence.look is None]
            self._propose_by_model(self.drafts, unseen)

    def _start_forks(self, chunk: Chunk) -> None:
        """Starts the other continuations of its prompt; one of no tokens ends."""
        sequence, forks = chunk.sequence, chunk.handle.forks
        while forks:
            self.scheduler.add(fork(sequence, forks.pop()), first=True)
        if sequence.max_tokens == 0:
            count, top = sequence.request.logprobs, list[tuple[int, float]]()
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
        chunk.handle.put(replace(event, records=take_records(chunk.sequence)))
        guess = chunk.tokens[len(chunk.tokens) - chunk.drafted + chunk.accepted :][:1]
        chunk.guess_accepted = guess == [event.token]
        chunk.accepted += chunk.guess_accepted

    def _done(self, chunk: Chunk) -> None:
        self.scheduler.done(chunk)
        self.stats.drafted_tokens += chunk.drafted
        self.stats.accepted_tokens += chunk.accepted

    def _propose_by_lookup(self, chunk: Chunk) -> None:
        """Guesses the next tokens by prompt lookup."""
        sequence = chunk.sequence
        if self.lookup and sequence.look is None:
            lookup = sequence.lookup = sequence.lookup or PromptLookup()
            lookup.learn(chunk.drafted, chunk.accepted)
            if self.drafts is None:
                room = sequence.max_tokens - len(sequence.tokens) - 1
                sequence.draft = lookup.propose(sequence.ids, room)

    def _propose_by_model(self, drafts: DraftModel, sequences: Seq[Sequence]) -> None:
        """Guesses the next tokens by the draft model. Guesses change no answer: where they fail
        there are none."""
        try:
            drafts.propose(sequences)
        except Exception as error:
            note(
                f"The draft model failed ({type(error).__name__}: {error}); this step goes on "
                "without guesses."
            )
            drafts.restart()
            for sequence in sequences:
                sequence.draft = []

    def _search(self, chunk: Chunk) -> None:
        """Grows each beam by a token once all were computed, or finishes the search."""
        self._done(chunk)
        handle, search = chunk.handle, chunk.handle.search
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
        handles, tokens = list[RequestHandle](), 0
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
        event = replace(event, records=take_records(sequence))
        self.scheduler.drop(sequence)
        if any(item.finish is None for item in sequence.handle.continuations):
            sequence.handle.put(event)
        else:
            self._close(sequence.handle, event)

    def _close(self, handle: RequestHandle, last: Event) -> None:
        """Ends a request with its last event."""
        handle.ended = True
        self.requests.discard(handle)
        stats, usage, reason = self.stats, handle.usage, last.finish_reason
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
        if self.drafts is not None:
            self.drafts.restart()
        self.scheduler.restart(without)

    def _released(self, sequence: Sequence) -> None:
        self.runner.released(sequence)
        if sequence.look is not None and not wants_scores(sequence):
            # what was recorded need not be computed again for it
            sequence.recompute_from = sequence.look.next
        if self.drafts is not None:
            self.drafts.released(sequence)

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ...core.errors import note
from ...core.generation.sample import likeliest
from ...core.nn import Model
from ...core.nn.finite import must_be_finite
from .draft import PromptLookup
from .draft_model import DraftModel
from .fair_queue import FairQueue
from .generated_sequence import GeneratedSequence, sample_with_logprobs
from .looking import edit_error, fork, take_records
from .memory import MemoryPlan
from .request import Event, FinishReason, RequestHandle
from .request_state import RequestState, Stats
from .runner import PagedRunner, encode
from .scheduler import Chunk, Scheduler, TokenSequence
from .scoring import logit_positions, record_scores, wants_scores

NO_LOGITS = torch.empty(0)


class StepItem(Protocol):
    """Item of a step's work: a chunk or a whole request."""

    @property
    def state(self) -> RequestState: ...

    @property
    def is_open(self) -> bool: ...


I = TypeVar("I", bound=StepItem)  # noqa: E741


@dataclass(eq=False)
class ChunkOutput:
    """A chunk in its step: the ``places`` whose ``logits`` (P, V) are needed, and the token sampled
    from them."""

    state: RequestState
    chunk: Chunk
    places: Sequence[int] = ()
    logits: Tensor = NO_LOGITS
    adjusted: Tensor = NO_LOGITS  # (V,), of the next token as the request changes them
    next_token: tuple[int, float, Sequence[tuple[int, float]]] = (0, 0.0, ())
    accepted: int = 0  # guesses that were right
    guess_accepted: bool = True  # the last of them was

    @property
    def row(self) -> GeneratedSequence:
        """The continuation that it is computed for."""
        row: GeneratedSequence = self.chunk.sequence.owner
        return row

    @property
    def is_open(self) -> bool:
        """True while its continuation has not ended and its pages were not taken away."""
        return not self.state.ended and bool(self.chunk.sequence.pages)

    @property
    def next_logits(self) -> Tensor:
        """Logits (V,) of the next token, after the accepted guesses."""
        return self.logits[len(self.logits) - 1 - self.chunk.drafted + self.accepted]


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
        closed: Callable[[RequestState], None],
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
        self.encode_queue = FairQueue[RequestState]()
        self.requests: dict[RequestHandle, RequestState] = {}
        self.stats = Stats()
        self.failed = False  # the last plan did, at no sequence

    def add_request(self, state: RequestState) -> None:
        self.requests[state.handle] = state
        self._map_isolated([state], self._enqueue)

    def step(self) -> None:
        """Encodes whole texts, then computes a chunk of every planned sequence."""
        self._encode()
        outputs = self._plan()
        if not outputs:
            return
        outputs = self._run_batched(self._map_isolated(outputs, self._select_logits), self._forward)
        self.stats.steps += 1
        outputs = self._map_isolated(outputs, self._check)
        finishing = [output for output in outputs if output.chunk.finishes]
        self._map_isolated([output for output in outputs if not output.chunk.finishes], self._done)
        self._draw([output for output in finishing if output.state.search is None])
        self._map_isolated(
            [output for output in finishing if output.state.search is not None], self._search
        )

    def end(
        self, state: RequestState, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """Ends all continuations of a request here and now, whatever else goes wrong."""
        if state.ended:
            return
        going = [row for row in state.rows if row.finish is None]
        events = [Event(row.index, finish_reason=reason, error=error) for row in going]
        if error is None:
            try:
                events = [row.end(reason) for row in going]
            except Exception as end_error:
                self.end(state, "error", end_error)
                return
        for row in going:
            row.finish = reason
        self._drop(state)
        events = events or [Event(0, finish_reason=reason, error=error)]
        with suppress(Exception):  # the client's own
            for event in events[:-1]:
                state.handle.put(event)
        self._close(state, events[-1])

    def end_all(self, error: Exception) -> None:
        """Last resort: ends every request; the engine goes on with new ones."""
        for state in [*self.requests.values()]:
            self.end(state, "error", error)
        self._restart(())

    # ------------------------------------------------------------------ for one request, or for all

    def _map_isolated(self, items: Sequence[I], work: Callable[[I], object]) -> list[I]:
        """Calls ``work`` for each item and returns those still open. An exception ends its own
        request alone."""
        for item in items:
            if item.is_open:
                try:
                    work(item)
                except Exception as error:
                    self.end(item.state, "error", error)
        # another row may have ended an earlier one's request
        return [item for item in items if item.is_open]

    def _run_batched(self, items: list[I], work: Callable[[Sequence[I]], object]) -> list[I]:
        """Calls ``work`` for all items at once, or for each alone where that fails: too little
        memory, or one item at fault."""
        with suppress(Exception):
            if items:
                work(items)
            return items
        return self._map_isolated(items, lambda item: work([item]))

    # ------------------------------------------------------------------------ a step, part by part

    def _enqueue(self, state: RequestState) -> None:
        if state.sequences:
            self.scheduler.add(state.sequences[0])
        else:
            self.encode_queue.add(state)

    def _plan(self) -> list[ChunkOutput]:
        scheduler, failed, self.failed = self.scheduler, self.failed, False
        try:
            return [
                ChunkOutput(self.requests[chunk.sequence.owner.handle], chunk)
                for chunk in scheduler.plan()
            ]
        except Exception as error:
            self.failed = scheduler.subject is None
            if self.failed and not failed:
                self._restart(())
                return []
            sequences = [scheduler.subject, *reversed(scheduler.running), *scheduler.waiting]
            self.end(
                next(
                    self.requests[sequence.owner.handle]
                    for sequence in sequences
                    if sequence is not None
                ),
                "error",
                error,
            )
            return []

    def _select_logits(self, output: ChunkOutput) -> None:
        self._mark_started(output.state)
        output.places = logit_positions(output.chunk)

    def _mark_started(self, state: RequestState) -> None:
        if not state.started:
            state.started, state.handle.start_time = True, time.monotonic()

    def _forward(self, outputs: Sequence[ChunkOutput]) -> None:
        logits = self.runner.forward(
            [output.chunk for output in outputs], [output.places for output in outputs]
        )
        for output, output_logits in zip(
            outputs, torch.split(logits, [len(output.places) for output in outputs]), strict=True
        ):
            output.logits = output_logits

    def _check(self, output: ChunkOutput) -> None:
        """Checks that logits are finite and records prompt scores."""
        if (error := edit_error(output.chunk.sequence, output.logits)) is not None:
            raise error
        must_be_finite(self.model, output.logits)
        record_scores(output.state, output.chunk, output.places, output.logits, self.vocab_size)

    def _draw(self, outputs: list[ChunkOutput]) -> None:
        """Samples a token for each sequence, and one more for as long as its guesses are right."""
        drawing = self._map_isolated(outputs, self._start_forks)
        while drawing:
            drawing = self._run_batched(self._map_isolated(drawing, self._adjust), self._sample)
            drawing = [
                output
                for output in self._map_isolated(drawing, self._append)
                if output.guess_accepted
            ]
        outputs = self._map_isolated(outputs, self._done)
        outputs = self._map_isolated(outputs, self._propose_by_lookup)
        if self.drafts is not None:
            self._propose_by_model(
                self.drafts,
                [output.chunk.sequence for output in outputs if output.chunk.sequence.look is None],
            )

    def _start_forks(self, output: ChunkOutput) -> None:
        """Starts the other continuations of its prompt; one of no tokens ends."""
        sequence, state, row = output.chunk.sequence, output.state, output.row
        while state.forks:
            self.scheduler.add(fork(sequence, state.sequences[state.forks.pop()]), first=True)
        if row.max_tokens == 0:
            top = (
                likeliest(output.logits[-1:], self.vocab_size, row.request.logprobs)
                if row.request.logprobs
                else [()]
            )
            self._finish(
                output,
                replace(row.end("length"), top=tuple(top[0]), records=take_records(sequence)),
            )

    def _adjust(self, output: ChunkOutput) -> None:
        output.adjusted = output.row.adjusted(output.next_logits)

    def _sample(self, outputs: Sequence[ChunkOutput]) -> None:
        logits, adjusted = (
            torch.stack([output.next_logits for output in outputs]),
            torch.stack([output.adjusted for output in outputs]),
        )
        tokens = sample_with_logprobs(
            [output.row for output in outputs], logits, adjusted, self.vocab_size
        )
        for output, token in zip(outputs, tokens, strict=True):
            output.next_token = token

    def _append(self, output: ChunkOutput) -> None:
        """Appends the sampled token; ``guess_accepted`` where it was guessed, and another can be
        sampled."""
        sequence, chunk, (token, *_) = output.chunk.sequence, output.chunk, output.next_token
        sequence.tokens.append(token)
        event = replace(output.row.add(*output.next_token), records=take_records(sequence))
        output.state.generated += 1
        if event.finish_reason is not None:
            self._finish(output, event)
            return
        output.state.handle.put(event)
        guesses = chunk.tokens[len(chunk.tokens) - chunk.drafted :]
        output.guess_accepted = (
            output.accepted < chunk.drafted and token == guesses[output.accepted]
        )
        output.accepted += output.guess_accepted

    def _done(self, output: ChunkOutput) -> None:
        self.scheduler.done(output.chunk, output.accepted)
        self.stats.drafted_tokens += output.chunk.drafted
        self.stats.accepted_tokens += output.accepted

    def _propose_by_lookup(self, output: ChunkOutput) -> None:
        """Guesses the next tokens by prompt lookup."""
        sequence, row = output.chunk.sequence, output.row
        if self.lookup and sequence.look is None:
            row.lookup = row.lookup or PromptLookup()
            row.lookup.learn(output.chunk.drafted, output.accepted)
            if self.drafts is None:
                sequence.draft = row.lookup.propose(
                    sequence.tokens, row.max_tokens - len(row.tokens) - 1
                )

    def _propose_by_model(self, drafts: DraftModel, sequences: Sequence[TokenSequence]) -> None:
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

    def _search(self, output: ChunkOutput) -> None:
        """Grows each beam by a token once all were computed, or finishes the search."""
        self._done(output)
        search = output.state.search
        assert search is not None
        search.logits[output.row.index] = output.logits[-1]
        if not search.ready:
            return
        grown = search.grow(self.vocab_size)
        if grown is not None:
            self.scheduler.branch(search.sequences, *grown, self.runner.copy)
            return
        for sequence in search.sequences:
            self.scheduler.drop(sequence)
        state = output.state
        hypotheses, (*events, last) = search.finish()
        state.handle.hypotheses, state.cached = hypotheses, search.sequences[0].cached
        state.generated = sum(len(hypothesis.tokens) for hypothesis in hypotheses)
        for event in events:
            state.handle.put(event)
        self._close(state, replace(last, usage=state.usage))

    def _encode(self) -> None:
        """Encodes whole texts, as many as fit in four steps' tokens."""
        states, tokens = list[RequestState](), 0
        while (state := self.encode_queue.peek()) is not None:
            tokens += len(state.handle.request.tokens)
            if states and tokens > 4 * self.step_tokens:
                break
            states.append(self.encode_queue.pop())
        states = self._run_batched(
            self._map_isolated(states, self._mark_started), self._run_encoder
        )
        self._map_isolated(states, self._finish_encoding)

    def _run_encoder(self, states: Sequence[RequestState]) -> None:
        requests = [state.handle.request for state in states]
        for state, output in zip(states, encode(self.reader, requests), strict=True):  # type: ignore[arg-type]
            state.handle.output = output

    def _finish_encoding(self, state: RequestState) -> None:
        assert state.handle.output is not None
        must_be_finite(self.model, state.handle.output)
        self._close(state, Event(0, finish_reason="stop"))

    # ------------------------------------------------------------------------------ how they end

    def _finish(self, output: ChunkOutput, event: Event) -> None:
        """Ends a continuation with this event."""
        state = output.state
        self.scheduler.drop(output.chunk.sequence)
        state.cached = state.sequences[0].cached
        state.open -= 1
        if state.open:
            state.handle.put(event)
        else:
            self._close(state, event)

    def _close(self, state: RequestState, last: Event) -> None:
        """Ends a request with its last event."""
        state.ended = True
        self.requests.pop(state.handle, None)
        stats = self.stats
        stats.prompt_tokens += len(state.handle.request.tokens)
        stats.cached_tokens += state.cached
        stats.generated_tokens += state.generated
        stats.finished += last.finish_reason in ("stop", "length")
        stats.cancelled += last.finish_reason == "cancelled"
        stats.failed += last.finish_reason == "error"
        self.closed(state)
        with suppress(Exception):  # the client's own
            state.handle.put(replace(last, usage=state.usage))

    def _drop(self, state: RequestState) -> None:
        """Drops the sequences of a request."""
        try:
            for sequence in state.sequences if not self.scheduler.broken else ():
                self.scheduler.drop(sequence)
        except Exception:
            self.scheduler.broken = True
        with suppress(ValueError):  # it was taken from the queue
            if not state.sequences:
                self.encode_queue.remove(state)
        if self.scheduler.broken:
            self._restart(state.sequences)

    def _restart(self, without: Sequence[TokenSequence]) -> None:
        """Frees all pages; open sequences are computed again."""
        self.runner.restart()
        if self.drafts is not None:
            self.drafts.restart()
        self.scheduler.restart(without)

    def _released(self, sequence: TokenSequence) -> None:
        self.runner.released(sequence)
        if sequence.look is not None and not wants_scores(sequence):
            # what was recorded need not be computed again for it
            sequence.recompute_from = sequence.look.next
        if self.drafts is not None:
            self.drafts.released(sequence)

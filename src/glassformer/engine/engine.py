"""The engine: requests in from any thread, events out, one thread that computes a step at a time.

    submit --> arrivals --> scheduler.plan --> runner.read --> draw --> events
                  ^              |                                |
               cancel            +------- finished, or another ---+

R rows of logits, V vocabulary.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UserError, need
from ..generation.sample import likeliest
from ..nn import Model
from ..nn.editing import one_token
from ..nn.finite import must_be_finite
from . import beams
from .begin import begun
from .continuation import Continuation, draw
from .draft import PromptLookup
from .draft_model import DraftModel, check_draft
from .job import Job, Stats
from .looking import fault, like, taken
from .memory import Room, check_encode, check_request, room_for
from .request import Encode, EngineClosed, Event, FinishReason, Handle, QueueFull, Request, TokenLogprob
from .runner import PagedRunner, encode
from .scheduler import Chunk, Scheduler, Text
from .scoring import keep_scores, scored, scored_or_last
from .turns import Turns

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


class Engine:
    """Answers requests for one model, which nothing else may train or change meanwhile.

    ``max_context`` (tokens of prompt and continuation; None: the model's), ``max_sequences`` (continuations at once),
    ``max_queue`` (requests that may wait; one more raises QueueFull) and ``memory`` (bytes for keys and values; None:
    half of what is free, at most what all these can need) bound it; ``room`` says what was taken. ``step_tokens`` are
    read at most in one pass, so that long prompts do not hold up others. ``lookup``: guess tokens that stand earlier in
    a text; ``draft``: let a small decoder of the same vocabulary guess. Guesses change no answer. Close it, or use it
    in a ``with``. Raises UserError where memory does not hold one text.
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
        self.model, self.tokenizer, self.max_queue = model, tokenizer, max_queue
        if draft is not None:
            check_draft(draft, model)
        self.room: Room = room_for(model, max_context, max_sequences, memory, draft, step_tokens)
        self.max_context, self.step_tokens = self.room.context, step_tokens
        self.known = None if tokenizer is None else tokenizer.size
        self.lookup = (lookup or draft is not None) and self.room.rewinds
        self._runner, drafter = self.room.runner(), self.room.drafter()
        self._drafts = None if drafter is None else DraftModel(drafter, self.known, step_tokens)
        self._scheduler = Scheduler(
            self.room.pool,
            self.room.size,
            budget=step_tokens,
            most=self.room.sequences,
            first=self.room.first,
            released=self._released,
            copy=self._runner.copy if isinstance(self._runner, PagedRunner) else None,
            windows=self.room.windows,
        )
        self._encodes = Turns[Job]()
        self._jobs: dict[Handle, Job] = {}
        self._arrivals: deque[Job] = deque()
        self._cancelled: set[Handle] = set()
        self._work = threading.Condition()
        self._stats = Stats(pages=sum(len(pool.users) for pool, _ in self.room.pools))
        self._begun: set[Handle] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="glassformer-engine", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------- from any thread

    def submit(self, request: Request | Encode) -> Handle:
        """Take a request; its events come by the handle. UserError for what this model cannot answer; QueueFull."""
        if isinstance(request, Encode):
            check_encode(request, self.model, self.max_context)
        else:
            check_request(request, self.model, self.tokenizer, self.max_context, self.room.first)
        seed = getattr(request, "seed", None)
        handle = Handle(request, self.cancel, int(torch.randint(2**31, ())) if seed is None else seed)
        job = Job(handle, [], [], [], 1)
        if isinstance(request, Request):
            job = begun(handle, self.model, self.tokenizer, self.max_context, self.step_tokens, lambda: self.shapes)
        with self._work:
            if self._closing:
                raise EngineClosed("The engine is closed; make another one.")
            waiting = len(self._jobs) - len(self._begun)
            if waiting >= self.max_queue:
                self._stats.refused += 1
                raise QueueFull(f"{waiting} requests are waiting, as many as may; try again later.")
            self._jobs[handle] = job
            self._arrivals.append(job)
            self._stats.requests += 1
            self._work.notify()
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a request at the next step; harmless for one that has ended."""
        with self._work:
            if handle in self._jobs:
                self._cancelled.add(handle)
                self._work.notify()

    def score(self, tokens: Sequence[int], top: int = 0) -> list[TokenLogprob]:
        """The log-probability of each token after those before it, with the ``top`` likeliest there."""
        handle = self.submit(Request(tokens, max_new=0, prompt_logprobs=top))
        return handle.result().prompt_logprobs or []

    def encode(self, request: Encode) -> Tensor:
        """What a whole text gives, as ``request`` asks."""
        output = self.submit(request).result().output
        assert output is not None
        return output

    def stats(self) -> Stats:
        """A copy of the numbers as they are now."""
        with self._work:
            running, preempted = len(self._begun), self._scheduler.preempted
            now = replace(self._stats, running=running, waiting=len(self._jobs) - running, preempted=preempted)
        return now.of_pages(self.room.pools)

    def close(self) -> None:
        """Cancel what is under way and stop; returns when the thread has ended."""
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether it takes requests and computes: not closed, its thread not ended."""
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
        while self._arrive():
            try:
                self._step()
            except Exception as error:  # of the model or the machine: who was in the step is told, others go on
                for job in {self._job_of(text) for text in self._scheduler.running}:
                    self._end(job, "error", error)

    def _arrive(self) -> bool:
        """Wait for something to do; False: the engine was closed and nothing is left."""
        with self._work:
            self._work.wait_for(lambda: self._jobs or self._closing)
            arrived = [*self._arrivals]
            self._arrivals.clear()
            ended = [*self._jobs] if self._closing else [*self._cancelled]
            self._cancelled.clear()
        for job in arrived:
            if job.texts:
                self._scheduler.add(job.texts[0])
            else:
                self._encodes.add(job)
        for handle in ended:
            if handle in self._jobs:
                self._end(self._jobs[handle], "cancelled")
        return bool(self._jobs) or not self._closing

    def _step(self) -> None:
        """Texts to be encoded, then a chunk of every text that is planned."""
        self._encode()
        chunks = self._scheduler.plan()
        if not chunks:
            return
        self._begin(self._job_of(text) for text in self._scheduler.running)
        wanted = [scored_or_last(chunk) for chunk in chunks]
        logits = torch.split(self._runner.read(chunks, wanted), [len(places) for places in wanted])
        with self._work:
            self._stats.steps += 1
        for chunk, own in zip(chunks, logits, strict=True):
            if (error := fault(chunk.text, own)) is not None and chunk.text.owner.handle in self._jobs:
                self._end(self._job_of(chunk.text), "error", error)
        drawing, searched = list[tuple[Chunk, Tensor]](), list[tuple[Text, Tensor]]()
        for chunk, places, own in zip(chunks, wanted, logits, strict=True):
            if chunk.text.owner.handle not in self._jobs:
                continue
            must_be_finite(self.model, own)
            keep_scores(self._job_of(chunk.text), chunk, places, own, self.known)
            if chunk.finishes and chunk.text.owner.request.beams is None:
                drawing.append((chunk, own[len(own) - 1 - chunk.drafted :]))
                continue
            self._scheduler.done(chunk)
            if chunk.finishes:
                searched.append((chunk.text, own[-1]))
        self._draw(drawing)
        for search in beams.searches(searched):
            self._grow(search)

    def _grow(self, search: beams.Search) -> None:
        """A token more for each beam; or all that was found."""
        grown, job = search.grow(self.known), self._job_of(search.texts[0])
        if grown is not None:
            self._scheduler.branch(search.texts, *grown, self._runner.copy)
            return
        self._drop(job)
        self._close(job, search.tell(job))

    def _drop(self, job: Job) -> None:
        """The texts of a request that the scheduler knows are not read any more."""
        for text in job.texts:
            if text.number >= 0 and text.owner.finish is None:
                self._scheduler.drop(text)

    def _draw(self, drawing: list[tuple[Chunk, Tensor]]) -> None:
        """A token for each text, and one more for as long as its guesses are right."""
        accepted = dict.fromkeys((chunk for chunk, _ in drawing), 0)
        turn = [one for one in drawing if self._may_draw(*one)]
        for place in range(1 + max((chunk.drafted for chunk, _ in drawing), default=0)):
            ready = [(chunk, own[place], self._adjusted(chunk.text.owner, own[place])) for chunk, own in turn]
            some = [(chunk, raw, changed) for chunk, raw, changed in ready if changed is not None]
            if not some:
                break
            rows: list[Continuation] = [chunk.text.owner for chunk, _, _ in some]
            raw, changed = (torch.stack([one[side] for one in some]) for side in (1, 2))  # type: ignore[misc]
            right = set[Chunk]()
            for (chunk, _, _), row, found in zip(some, rows, draw(rows, raw, changed, self.known), strict=True):
                self._add(chunk.text, row, found)
                guesses = chunk.tokens[len(chunk.tokens) - chunk.drafted :]
                if row.finish is None and place < chunk.drafted and found[0] == guesses[place]:
                    accepted[chunk] += 1
                    right.add(chunk)
            turn = [one for one in turn if one[0] in right]
        for chunk, _ in drawing:
            if chunk.text.owner.finish is None:
                self._done(chunk, accepted[chunk])
        if self._drafts is not None:
            texts = (chunk.text for chunk, _ in drawing)
            self._drafts.propose([text for text in texts if text.look is None and text.owner.finish is None])

    def _may_draw(self, chunk: Chunk, logits: Tensor) -> bool:
        """Whether a continuation takes a token now; one of none ends, and others of its prompt begin."""
        row: Continuation = chunk.text.owner
        job = self._jobs[row.handle]
        for index in reversed(job.later):
            self._scheduler.add(like(chunk.text, job.texts[index]), first=True)
        job.later.clear()
        if row.room == 0:
            top = likeliest(logits[:1], self.known, row.request.logprobs) if row.request.logprobs else [()]
            self._finish(chunk.text, replace(row.end("length"), top=tuple(top[0]), seen=taken(chunk.text)))
        return row.finish is None

    def _adjusted(self, row: Continuation, logits: Tensor) -> Tensor | None:
        """Logits (V,) as the request changes them; None where its guide fails, which ends the request."""
        try:
            return row.adjusted(logits)
        except Exception as error:
            self._end(self._jobs[row.handle], "error", error)
            return None

    def _add(self, text: Text, row: Continuation, found: tuple[int, float, Sequence[tuple[int, float]]]) -> None:
        text.tokens.append(found[0])
        event, job = replace(row.add(*found), seen=taken(text)), self._jobs[row.handle]
        job.generated += 1
        if event.finish_reason is None:
            row.handle.put(event)
        else:
            self._finish(text, event)

    def _done(self, chunk: Chunk, accepted: int) -> None:
        """A chunk was read; guess what follows."""
        text, row = chunk.text, chunk.text.owner
        self._scheduler.done(chunk, accepted)
        with self._work:
            self._stats.drafted_tokens += chunk.drafted
            self._stats.accepted_tokens += accepted
        if self.lookup and text.look is None:
            row.lookup = row.lookup or PromptLookup()
            row.lookup.learn(chunk.drafted, accepted)
            if self._drafts is None:
                text.draft = row.lookup.propose(text.tokens, row.room - len(row.tokens) - 1)

    def _encode(self) -> None:
        """Whole texts, as many as fit in four steps' tokens."""
        jobs, tokens = list[Job](), 0
        while (job := self._encodes.peek()) is not None:
            tokens += len(job.handle.request.tokens)
            if jobs and tokens > 4 * self.step_tokens:
                break
            jobs.append(self._encodes.pop())
        if not jobs:
            return
        self._begin(jobs)
        try:
            outputs = encode(self.room.model, [job.handle.request for job in jobs])  # type: ignore[misc]
        except Exception as error:
            for job in jobs:
                self._end(job, "error", error)
            return
        for job, output in zip(jobs, outputs, strict=True):
            try:
                must_be_finite(self.model, output)
            except UserError as error:
                self._end(job, "error", error)
                continue
            job.handle.output = output
            self._close(job, Event(0, finish_reason="stop", usage=job.usage))

    def _begin(self, jobs: object) -> None:
        """Requests whose first text runs are not waiting any more."""
        with self._work:
            for handle in {job.handle for job in jobs} - self._begun:  # type: ignore[attr-defined]
                handle.began = time.monotonic()
                self._begun.add(handle)

    def _job_of(self, text: Text) -> Job:
        return self._jobs[text.owner.handle]

    def _released(self, text: Text) -> None:
        self._runner.released(text)
        if text.look is not None and not scored(text):
            text.own = text.look.next  # what was recorded need not be read again for it
        if self._drafts is not None:
            self._drafts.released(text)

    def _finish(self, text: Text, event: Event) -> None:
        """A continuation has ended with this event."""
        job = self._job_of(text)
        self._scheduler.drop(text)
        job.cached = job.texts[0].cached
        job.open -= 1
        if job.open:
            job.handle.put(event)
        else:
            self._close(job, replace(event, usage=job.usage))

    def _end(self, job: Job, reason: FinishReason, error: Exception | None = None) -> None:
        """All continuations of a request end here and now."""
        self._drop(job)
        going = [row for row in job.rows if row.finish is None]
        for index, row in enumerate(going):
            usage = job.usage if index == len(going) - 1 else None
            event = replace(row.end(reason, error), usage=usage)
            if usage is None:
                job.handle.put(event)
            else:
                self._close(job, event)
        if not job.texts:
            if job in [*self._encodes]:
                self._encodes.remove(job)
            self._close(job, Event(0, finish_reason=reason, error=error, usage=job.usage))

    def _close(self, job: Job, last: Event) -> None:
        """The last event of a request."""
        with self._work:
            del self._jobs[job.handle]
            self._begun.discard(job.handle)
            self._cancelled.discard(job.handle)
            stats = self._stats
            stats.prompt_tokens += len(job.handle.request.tokens)
            stats.cached_tokens += job.cached
            stats.generated_tokens += job.generated
            stats.finished += last.finish_reason in ("stop", "length")
            stats.cancelled += last.finish_reason == "cancelled"
            stats.failed += last.finish_reason == "error"
        job.handle.put(last)

"""What an engine's thread computes: step after step, chunks read together, tokens drawn together,
the rest one by one.

    plan --> begin --> read --> check --> open --> adjust --> choose --> add --> done --> guesses
             each      all      each      each     each       all        each    each

What one request raises ends that request alone, because there are two ways to do anything:
``_each`` does it for one request after the other, ``_together`` for all of them and, where that
fails, for each alone. The scheduler says at which text a plan failed; where a change of its pages
stopped half-way all pages are given back, and the texts that go on are read again. Where no text is
to blame the plan is made once more, and after that without the newest.

P places of a chunk, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import note
from ..generation.sample import likeliest
from ..nn import Model
from ..nn.finite import must_be_finite
from .beams import Search
from .continuation import draw
from .draft import PromptLookup
from .draft_model import DraftModel
from .job import Job, Stats
from .looking import fault, like, taken
from .memory import Room
from .request import Event, FinishReason, Handle
from .runner import PagedRunner, encode
from .scheduler import Chunk, Scheduler, Text
from .scoring import keep_scores, scored, scored_or_last
from .turns import Turns

NO_LOGITS = torch.empty(0)


class Item(Protocol):
    """What a step does something for."""

    @property
    def job(self) -> Job: ...

    @property
    def goes_on(self) -> bool: ...


I = TypeVar("I", bound=Item)  # noqa: E741


@dataclass(eq=False)
class Turn:
    """A chunk in its step: the ``places`` in it whose ``logits`` (P, V) are asked for, and what
    came of them."""

    job: Job
    chunk: Chunk
    places: Sequence[int] = ()
    logits: Tensor = NO_LOGITS
    adjusted: Tensor = NO_LOGITS  # (V,), of the next token as the request changes them
    drawn: tuple[int, float, Sequence[tuple[int, float]]] = (0, 0.0, ())
    accepted: int = 0  # guesses that were right
    right: bool = True  # the last of them was
    row: Any = field(init=False)  # Continuation, or Place of a search

    def __post_init__(self) -> None:
        self.row = self.chunk.text.owner

    @property
    def goes_on(self) -> bool:
        """Whether its continuation has not ended, and its pages were not taken away."""
        return not self.job.ended and self.row.finish is None and bool(self.chunk.text.pages)

    @property
    def next(self) -> Tensor:
        """The logits (V,) of the next token, after the guesses that were right."""
        return self.logits[len(self.logits) - 1 - self.chunk.drafted + self.accepted]


class Worker:
    """The engine's own thread at work on ``jobs``; ``closed`` hears of each that has ended, before
    its client does."""

    def __init__(
        self,
        model: Model,
        room: Room,
        known: int | None,
        step_tokens: int,
        lookup: bool,
        closed: Callable[[Job], None],
    ) -> None:
        self.model, self.reader, self.known = model, room.model, known
        self.step_tokens, self.lookup, self.closed = step_tokens, lookup, closed
        self.runner, drafter = room.runner(), room.drafter()
        self.drafts = None if drafter is None else DraftModel(drafter, known, step_tokens)
        self.scheduler = Scheduler(
            room.pool,
            room.size,
            budget=step_tokens,
            most=room.sequences,
            first=room.first,
            released=self._released,
            copy=self.runner.copy if isinstance(self.runner, PagedRunner) else None,
            windows=room.windows,
        )
        self.encodes = Turns[Job]()
        self.jobs: dict[Handle, Job] = {}
        self.stats = Stats()
        self.failed = False  # the last plan did, at no text

    def arrive(self, job: Job) -> None:
        """One more request."""
        self.jobs[job.handle] = job
        self._each([job], self._wait)

    def step(self) -> None:
        """Texts to be encoded, then a chunk of every text that is planned."""
        self._encode()
        turns = self._plan()
        if not turns:
            return
        turns = self._together(self._each(turns, self._begin), self._read)
        self.stats.steps += 1
        turns = self._each(turns, self._check)
        drawing = [turn for turn in turns if turn.chunk.finishes and turn.row.request.beams is None]
        searched = [
            turn for turn in turns if turn.chunk.finishes and turn.row.request.beams is not None
        ]
        self._each([turn for turn in turns if not turn.chunk.finishes], self._done)
        self._draw(drawing)
        self._each(searched, self._search)

    def end(self, job: Job, reason: FinishReason, error: Exception | None = None) -> None:
        """All continuations of a request end here and now, whatever else goes wrong."""
        if job.ended:
            return
        going = [row for row in job.rows if row.finish is None]
        events = [Event(row.index, finish_reason=reason, error=error) for row in going]
        if error is None:
            try:
                events = [row.end(reason) for row in going]
            except Exception as other:
                self.end(job, "error", other)
                return
        for row in going:
            row.finish = reason
        self._drop(job)
        events = events or [Event(0, finish_reason=reason, error=error)]
        with suppress(Exception):  # the client's own
            for event in events[:-1]:
                job.handle.put(event)
        self._close(job, events[-1])

    def end_all(self, error: Exception) -> None:
        """The last resort: every request ends, and the engine goes on with what comes."""
        for job in [*self.jobs.values()]:
            self.end(job, "error", error)
        self._restart(())

    # ------------------------------------------------------------------ for one request, or for all

    def _each(self, items: Sequence[I], work: Callable[[I], object]) -> list[I]:
        """Do it for each; those that still go on. What one raises ends its request alone."""
        for item in items:
            if item.goes_on:
                try:
                    work(item)
                except Exception as error:
                    self.end(item.job, "error", error)
        # another row may have ended an earlier one's request
        return [item for item in items if item.goes_on]

    def _together(self, items: list[I], work: Callable[[Sequence[I]], object]) -> list[I]:
        """Do it for all at once, or for each alone where that fails: too little memory, or one that
        fails."""
        with suppress(Exception):
            if items:
                work(items)
            return items
        return self._each(items, lambda item: work([item]))

    # ------------------------------------------------------------------------ a step, part by part

    def _wait(self, job: Job) -> None:
        if job.texts:
            self.scheduler.add(job.texts[0])
        else:
            self.encodes.add(job)

    def _plan(self) -> list[Turn]:
        scheduler, failed, self.failed = self.scheduler, self.failed, False
        try:
            return [Turn(self.jobs[chunk.text.owner.handle], chunk) for chunk in scheduler.plan()]
        except Exception as error:
            self.failed = scheduler.subject is None
            if self.failed and not failed:
                self._restart(())
                return []
            texts = [scheduler.subject, *reversed(scheduler.running), *scheduler.waiting]
            self.end(
                next(self.jobs[text.owner.handle] for text in texts if text is not None),
                "error",
                error,
            )
            return []

    def _begin(self, turn: Turn) -> None:
        self._mark(turn.job)
        turn.places = scored_or_last(turn.chunk)

    def _mark(self, job: Job) -> None:
        """It waits no more."""
        if not job.begun:
            job.begun, job.handle.began = True, time.monotonic()

    def _read(self, turns: Sequence[Turn]) -> None:
        logits = self.runner.read([turn.chunk for turn in turns], [turn.places for turn in turns])
        for turn, own in zip(
            turns, torch.split(logits, [len(turn.places) for turn in turns]), strict=True
        ):
            turn.logits = own

    def _check(self, turn: Turn) -> None:
        """Logits are numbers; what they say of the prompt is kept."""
        if (error := fault(turn.chunk.text, turn.logits)) is not None:
            raise error
        must_be_finite(self.model, turn.logits)
        keep_scores(turn.job, turn.chunk, turn.places, turn.logits, self.known)

    def _draw(self, turns: list[Turn]) -> None:
        """A token for each text, and one more for as long as its guesses are right."""
        drawing = self._each(turns, self._open)
        while drawing:
            drawing = self._together(self._each(drawing, self._adjust), self._choose)
            drawing = [turn for turn in self._each(drawing, self._add) if turn.right]
        turns = self._each(turns, self._done)
        turns = self._each(turns, self._guess)
        if self.drafts is not None:
            self._propose(
                self.drafts, [turn.chunk.text for turn in turns if turn.chunk.text.look is None]
            )

    def _open(self, turn: Turn) -> None:
        """Other continuations of its prompt begin; one of no tokens ends."""
        text, job, row = turn.chunk.text, turn.job, turn.row
        while job.later:
            self.scheduler.add(like(text, job.texts[job.later.pop()]), first=True)
        if row.room == 0:
            top = (
                likeliest(turn.logits[-1:], self.known, row.request.logprobs)
                if row.request.logprobs
                else [()]
            )
            self._finish(turn, replace(row.end("length"), top=tuple(top[0]), seen=taken(text)))

    def _adjust(self, turn: Turn) -> None:
        turn.adjusted = turn.row.adjusted(turn.next)

    def _choose(self, turns: Sequence[Turn]) -> None:
        logits, adjusted = (
            torch.stack([turn.next for turn in turns]),
            torch.stack([turn.adjusted for turn in turns]),
        )
        tokens = draw([turn.row for turn in turns], logits, adjusted, self.known)
        for turn, token in zip(turns, tokens, strict=True):
            turn.drawn = token

    def _add(self, turn: Turn) -> None:
        """Take the token that was drawn; ``right`` where it was guessed, and another can be
        drawn."""
        text, chunk, (token, *_) = turn.chunk.text, turn.chunk, turn.drawn
        text.tokens.append(token)
        event = replace(turn.row.add(*turn.drawn), seen=taken(text))
        turn.job.generated += 1
        if event.finish_reason is not None:
            self._finish(turn, event)
            return
        turn.job.handle.put(event)
        guesses = chunk.tokens[len(chunk.tokens) - chunk.drafted :]
        turn.right = turn.accepted < chunk.drafted and token == guesses[turn.accepted]
        turn.accepted += turn.right

    def _done(self, turn: Turn) -> None:
        self.scheduler.done(turn.chunk, turn.accepted)
        self.stats.drafted_tokens += turn.chunk.drafted
        self.stats.accepted_tokens += turn.accepted

    def _guess(self, turn: Turn) -> None:
        """What follows, by what stands earlier in the text."""
        text, row = turn.chunk.text, turn.row
        if self.lookup and text.look is None:
            row.lookup = row.lookup or PromptLookup()
            row.lookup.learn(turn.chunk.drafted, turn.accepted)
            if self.drafts is None:
                text.draft = row.lookup.propose(text.tokens, row.room - len(row.tokens) - 1)

    def _propose(self, drafts: DraftModel, texts: Sequence[Text]) -> None:
        """What follows, by the draft model. Guesses change no answer: where they fail there are
        none."""
        try:
            drafts.propose(texts)
        except Exception as error:
            note(
                f"The draft model failed ({type(error).__name__}: {error}); this step goes on "
                "without guesses."
            )
            drafts.restart()
            for text in texts:
                text.draft = []

    def _search(self, turn: Turn) -> None:
        """A token more for each beam once all were read; or all that was found."""
        self._done(turn)
        search: Search = turn.row.search
        search.logits[turn.row.index] = turn.logits[-1]
        if not search.ready:
            return
        grown = search.grow(self.known)
        if grown is not None:
            self.scheduler.branch(search.texts, *grown, self.runner.copy)
            return
        for text in search.texts:
            self.scheduler.drop(text)
        self._close(turn.job, search.tell(turn.job))

    def _encode(self) -> None:
        """Whole texts, as many as fit in four steps' tokens."""
        jobs, tokens = list[Job](), 0
        while (job := self.encodes.peek()) is not None:
            tokens += len(job.handle.request.tokens)
            if jobs and tokens > 4 * self.step_tokens:
                break
            jobs.append(self.encodes.pop())
        jobs = self._together(self._each(jobs, self._mark), self._read_whole)
        self._each(jobs, self._answer)

    def _read_whole(self, jobs: Sequence[Job]) -> None:
        requests = [job.handle.request for job in jobs]
        for job, output in zip(jobs, encode(self.reader, requests), strict=True):  # type: ignore[arg-type]
            job.handle.output = output

    def _answer(self, job: Job) -> None:
        assert job.handle.output is not None
        must_be_finite(self.model, job.handle.output)
        self._close(job, Event(0, finish_reason="stop"))

    # ------------------------------------------------------------------------------ how they end

    def _finish(self, turn: Turn, event: Event) -> None:
        """A continuation has ended with this event."""
        job = turn.job
        self.scheduler.drop(turn.chunk.text)
        job.cached = job.texts[0].cached
        job.open -= 1
        if job.open:
            job.handle.put(event)
        else:
            self._close(job, event)

    def _close(self, job: Job, last: Event) -> None:
        """The last event of a request."""
        job.ended = True
        self.jobs.pop(job.handle, None)
        stats = self.stats
        stats.prompt_tokens += len(job.handle.request.tokens)
        stats.cached_tokens += job.cached
        stats.generated_tokens += job.generated
        stats.finished += last.finish_reason in ("stop", "length")
        stats.cancelled += last.finish_reason == "cancelled"
        stats.failed += last.finish_reason == "error"
        self.closed(job)
        with suppress(Exception):  # the client's own
            job.handle.put(replace(last, usage=job.usage))

    def _drop(self, job: Job) -> None:
        """The texts of a request are not read any more."""
        try:
            for text in job.texts if not self.scheduler.broken else ():
                self.scheduler.drop(text)
        except Exception:
            self.scheduler.broken = True
        with suppress(ValueError):  # it was taken from the queue
            if not job.texts:
                self.encodes.remove(job)
        if self.scheduler.broken:
            self._restart(job.texts)

    def _restart(self, without: Sequence[Text]) -> None:
        """All pages are given back; texts that go on are read again."""
        self.runner.restart()
        if self.drafts is not None:
            self.drafts.restart()
        self.scheduler.restart(without)

    def _released(self, text: Text) -> None:
        self.runner.released(text)
        if text.look is not None and not scored(text):
            text.own = text.look.next  # what was recorded need not be read again for it
        if self.drafts is not None:
            self.drafts.released(text)

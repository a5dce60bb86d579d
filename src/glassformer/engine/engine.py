"""The engine: requests in from any thread, events out, one thread that computes.

V vocabulary.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import config
from ..errors import UserError, need
from ..generation.prompt import check, end_tokens
from ..generation.sample import likeliest, log_probability
from ..generation.session import Session
from ..nn import Model, Output
from ..nn.finite import must_be_finite
from ..nn.inference import inference
from ..nn.pool import Pool
from .continuation import Continuation, draw
from .request import Encode, EngineClosed, Event, Handle, QueueFull, Request, TokenLogprob, Usage

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


@dataclass
class Stats:
    """What the engine is doing now (``running``, ``waiting``, pages), and what it has done since it began."""

    running: int = 0
    waiting: int = 0
    pages: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_free: int = 0
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
    """Answers requests for one model, which nothing else may train or change meanwhile.

    ``max_context`` (tokens of prompt and continuation; None: the model's), ``max_sequences`` (continuations at once),
    ``max_queue`` (requests that may wait; one more raises QueueFull) and ``memory`` (bytes for pages of keys and
    values; None: half of what is free) bound it. ``page_size`` is in tokens. Close it, or use it in a ``with``.
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
        page_size: int = 32,
    ) -> None:
        need(max_sequences >= 1, f"max_sequences is {max_sequences}; give 1 or more.")
        need(max_queue >= 1, f"max_queue is {max_queue}; give 1 or more.")
        context = model.config.context
        need(max_context is None or 1 <= max_context <= context, f"max_context is {max_context}; give 1 to {context}.")
        self.model, self.tokenizer = model, tokenizer
        self.max_context, self.max_queue = max_context or context, max_queue
        self._stats = Stats()
        self._waiting: deque[Handle] = deque()
        self._cancelled: set[Handle] = set()
        self._work = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="glassformer-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request | Encode) -> Handle:
        """Take a request; its events come by the handle. UserError for what this model cannot answer; QueueFull."""
        self._check(request)
        seed = getattr(request, "seed", None)
        handle = Handle(request, self.cancel, int(torch.randint(2**31, ())) if seed is None else seed)
        with self._work:
            if self._closing:
                raise EngineClosed("The engine is closed; make another one.")
            if len(self._waiting) >= self.max_queue:
                self._stats.refused += 1
                raise QueueFull(f"{len(self._waiting)} requests are waiting, as many as may; try again later.")
            self._waiting.append(handle)
            self._stats.requests += 1
            self._work.notify()
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a request at the next step; harmless for one that has ended."""
        with self._work:
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
            self._stats.waiting = len(self._waiting)
            return Stats(**vars(self._stats))

    def close(self) -> None:
        """Cancel what is under way and stop; returns when the thread has ended."""
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, request: Request | Encode) -> None:
        """UserError for what this model cannot answer."""
        cfg = self.model.config
        check(request.tokens, cfg.embed.vocab)
        length = len(request.tokens)
        need(length <= self.max_context, f"{length} tokens are more than the {self.max_context} allowed; shorten them.")
        if isinstance(request, Encode):
            return self._check_encode(request)
        if isinstance(cfg, config.Encoder) or cfg.head is None:
            raise UserError("This model cannot continue a text; use it to encode texts.")
        two = isinstance(cfg, config.EncoderDecoder)
        need(two == (request.source is not None), f"This model {'needs a' if two else 'takes no'} source.")
        if request.source is not None:
            check(request.source, config.source_embed(cfg).vocab)
            most = f"{len(request.source)} tokens of source are more than the {self.max_context} allowed; shorten them."
            need(len(request.source) <= self.max_context, most)
        need(not request.stop or self.tokenizer is not None, "Stop strings need a tokenizer; give the engine one.")
        wrong = next((token for token in request.logit_bias if not 0 <= token < cfg.embed.vocab), None)
        need(wrong is None, f"logit_bias names token {wrong}; this model knows 0 to {cfg.embed.vocab - 1}.")
        need(request.max_new != 0 or request.prompt_logprobs is not None, "max_new is 0; ask for prompt_logprobs then.")

    def _check_encode(self, request: Encode) -> None:
        cfg = self.model.config
        need(not isinstance(cfg, config.EncoderDecoder), "An encoder-decoder has no vector for a text; use another.")
        labelled = cfg.pool is not None and bool(cfg.pool.labels)
        need(request.output != "labels" or labelled, "This model has no labels for texts; train it with Classify.")
        tagged = self.model.token_head is not None
        need(request.output != "tags" or tagged, "This model has no labels for tokens; train it with Tag.")
        need(request.output != "logits" or cfg.head is not None, "This model has no head over tokens.")
        segments = cfg.embed.segments
        need(request.segments is None or bool(segments), "This model reads one text, not pairs; leave out segments.")
        wrong = next((one for one in request.segments or () if not 0 <= one < segments), None)
        need(wrong is None, f"Segment {wrong} is not one of this model's {segments}; give 0 to {segments - 1}.")

    def _loop(self) -> None:
        """The engine's own thread: one request after another."""
        while True:
            with self._work:
                self._work.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                handle = self._waiting.popleft()
                self._stats.running = 1
            try:
                if isinstance(handle.request, Encode):
                    handle.output = encoded(self.model, handle.request)
                    handle.put(Event(0, finish_reason="stop", usage=Usage(len(handle.request.tokens), 0, 0)))
                    self._count(finished=1, prompt_tokens=len(handle.request.tokens))
                else:
                    self._answer(handle, handle.request)
            except Exception as error:  # whatever it was, the engine goes on with the next request
                usage = Usage(len(handle.request.tokens), 0, 0)
                handle.put(Event(0, finish_reason="error", error=error, usage=usage))
                self._count(failed=1)
            with self._work:
                self._cancelled.discard(handle)
                self._stats.running = 0

    def _count(self, **numbers: int) -> None:
        with self._work:
            for name, number in numbers.items():
                setattr(self._stats, name, getattr(self._stats, name) + number)

    def _answer(self, handle: Handle, request: Request) -> None:
        """Its continuations, one after another."""
        if request.prompt_logprobs is not None:
            handle.prompt_logprobs = self._prompt_logprobs(request)
        room = self.max_context - len(request.tokens) + 1
        room = room if request.max_new is None else min(room, request.max_new)
        ends = end_tokens(None, self.tokenizer) if request.stop_tokens is None else frozenset(request.stop_tokens)
        rows = [Continuation(handle, index, room, ends, self.tokenizer) for index in range(request.n)]
        generated = 0
        for row in rows:
            session = Session(self.model)
            logits = None
            while row.finish is None:
                if self._closing or handle in self._cancelled or room == 0:
                    event = row.end("length" if room == 0 else "cancelled")
                else:
                    if logits is None:
                        source = None if request.source is None else [request.source]
                        logits = session.prefill([request.tokens], source, 1)
                    else:
                        logits = session.decode(torch.tensor(row.tokens[-1:], device=logits.device))
                    must_be_finite(self.model, logits)
                    event = row.add(*draw([row], logits, self.tokenizer.size if self.tokenizer else None)[0])
                    generated += 1
                usage = Usage(len(request.tokens), 0, generated) if row is rows[-1] and row.finish else None
                handle.put(replace(event, usage=usage))
        ended = "cancelled" if rows[-1].finish == "cancelled" else "finished"
        self._count(**{ended: 1}, prompt_tokens=len(request.tokens), generated_tokens=generated)

    def _prompt_logprobs(self, request: Request) -> list[TokenLogprob]:
        """Of each token of the prompt."""
        device = next(self.model.parameters()).device
        told = {} if request.source is None else {"source": torch.tensor([request.source], device=device)}
        tokens = torch.tensor([request.tokens], device=device)
        with inference(self.model):
            logits = self.model(tokens, **told).logits[0, :-1].float()
        own = log_probability(logits, tokens[0, 1:]).tolist()
        known = self.tokenizer.size if self.tokenizer else None
        top = likeliest(logits, known, request.prompt_logprobs) if request.prompt_logprobs else [[] for _ in own]
        rest = [TokenLogprob(*one) for one in zip(request.tokens[1:], own, map(tuple, top), strict=True)]
        return [TokenLogprob(request.tokens[0], None), *rest]


def encoded(model: Model, request: Encode) -> Tensor:
    """What ``model`` makes of one text."""
    device = next(model.parameters()).device
    told = {} if request.segments is None else {"segments": torch.tensor([request.segments], device=device)}
    own = model.config.pool
    with inference(model):
        tokens = torch.tensor([request.tokens], device=device)
        out: Output = model(tokens, logits="none", **told)
        if request.output == "vector":
            pool = model.pool if own is not None and not own.labels else Pool(config.Pool("mean"), model.config.dim)
            vector: Tensor = pool(out.hidden, model.flow(tokens, None))[0]
            return vector
        if request.output == "labels":
            assert out.pooled is not None
            return out.pooled[0]
        if request.output == "tags":
            assert out.tagged is not None
            return out.tagged[0]
        hidden = out.hidden[0] if request.positions is None else out.hidden[0, list(request.positions)]
        if request.output == "hidden":
            return hidden
        assert model.head is not None
        logits: Tensor = model.head(hidden, model.embed)
        return logits

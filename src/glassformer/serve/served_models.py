"""Served models, and a request to one: its body read, its texts as ids, its requests to the engine, which
are cancelled when the client disconnects, its answer written.

Texts become ids in threads, so that a long one blocks no other request; what cannot fit is refused
first.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from prometheus_client import Histogram
from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from torch import Tensor

from ..core import config
from ..core.errors import need
from ..core.tokenizer.framing import document_start
from ..formats import chat_template
from ..formats.chat_template import ChatTemplate
from ..formats.checkpoint import Checkpoint
from ..sight import Probe, edits
from ..sight.edits import Edit
from ..tasks.predictions import prompt, tags
from .asgi.body_errors import validation_error
from .asgi.limits import ACCOUNT_SECONDS, EVENT_BYTES, MOST_CHARACTERS, SCORE_BYTES
from .asgi.replies import (
    CountedResponse,
    HttpError,
    RequestStats,
    disconnected,
    encode_json,
    from_json,
    json_response,
    read_body,
    refuse,
    small_json,
    until_disconnect,
)
from .engine import Encode, Engine, EngineClosed, Event, Request, RequestHandle
from .engine.sequence import first_outside
from .lanes import ByteBudget, Lanes, client_of
from .page.models import InMemoryEntry, Models
from .prometheus import Metrics
from .schemas import InspectOptions

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BATCH_SIZE = 32  # texts of one request that are encoded side by side


@dataclass(frozen=True)
class EngineLimits:
    """Engine limits set by the operator for every model; None is the engine's default."""

    max_context: int | None = None
    max_sequences: int = 32
    max_queue: int = 256
    memory: int | None = None


class ServedModel(InMemoryEntry):
    """Served model with its engine, tokenizer and chat template."""

    def __init__(
        self,
        id: str,
        checkpoint: Checkpoint,
        model: Any,
        bounds: EngineLimits,
        template: Path | None,
        base: ServedModel | None = None,
    ) -> None:
        tokenizer = checkpoint.tokenizer()
        if tokenizer is None and base is not None:
            tokenizer = base.tokenizer
        need(
            tokenizer is not None,
            f"{checkpoint.name} has no tokenizer, so it cannot read text; serve another model.",
        )
        assert tokenizer is not None
        super().__init__(id, checkpoint, model, tokenizer)
        self.base = base  # of an adapter
        self.created = int(time.time())
        self.config: config.Model = model.config
        self.starts_with_bos = document_start(tokenizer) is not None
        folder = checkpoint.folder
        source = None if folder is None else chat_template.find(folder)
        if template is not None:
            self.template: ChatTemplate | None = ChatTemplate.open(template, tokenizer)
        else:
            self.template = None if source is None else ChatTemplate(source, tokenizer)
        if base is not None and self.template is None:
            self.template = base.template
        longest = max(len(tokenizer.bytes_of(id)) for id in range(tokenizer.size))
        self.engine = Engine(model, tokenizer, **vars(bounds))
        self.context = self.engine.max_context
        # a longer text cannot fit, however it is cut
        self.characters = self.context * max(longest, 1)
        cfg = self.config
        has_head = cfg.head is not None
        continues = cfg.is_decoder and has_head
        translates = cfg.has_source and has_head
        # classes of a text (one: a number), and of its tokens
        labelled = cfg.labels > 0
        tagged = tags(cfg)
        embeds = not cfg.has_source and not labelled
        masks = cfg.is_encoder and tokenizer.mask is not None
        abilities = {
            "completions": continues,
            "chat": continues and self.template is not None,
            "embeddings": embeds,
            "score": embeds or labelled,
            "classify": labelled,
            "tag": tagged,
            "fill": masks and has_head,
            "translate": translates,
        }
        self.abilities = [name for name, able in abilities.items() if able]  # its endpoints
        label_head: Any = cfg.token_head if tagged else cfg.pool
        count = label_head.labels if label_head else 0
        self.labels = list(checkpoint.labels) or list(map(str, range(count)))
        self.prompt = prompt(checkpoint.prompts)  # before each text that is embedded
        self.directions: Mapping[str, Probe] = {}  # probes by the names that requests use

    def parse_edits(self, body: InspectOptions) -> list[Edit]:
        """Edits of a request, those by directions last. Raises UserError for what is none, and for
        an unknown direction."""
        parsed = [edits.parse(line, self.directions) for line in body.edits]
        for name, strength in body.directions.items():
            probe = edits.served_probe(name, self.directions)
            parsed.append(edits.steer(probe.best, probe, strength))
        return parsed

    def check_lengths(self, texts: Sequence[object], param: str) -> None:
        """Raises HttpError 400 for texts that cannot fit, by their characters alone."""
        check_characters(texts, param)
        longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
        message = (
            f"A text of {longest} characters cannot fit in the context of {self.context} tokens; "
            "shorten it."
        )
        refuse(longest > self.characters, message, param, "context_length_exceeded")

    def check_context(self, row: Sequence[int], new: int, param: str) -> None:
        """Raises HttpError 400 where a prompt with ``new`` tokens after it is longer than the context.

        The last token that is generated is never read, so it may lie just outside.
        """
        if len(row) + max(new - 1, 0) > self.context:
            requested = f" and {new} more are asked for" if new else ""
            message = (
                f"The prompt has {len(row)} tokens{requested}; this model's maximum context length "
                f"is {self.context}. Shorten it, or ask for fewer."
            )
            raise HttpError(400, message, param, "context_length_exceeded")

    def encode_prompts(self, texts: Sequence[str | list[int]], bos: bool = True) -> list[list[int]]:
        """Token ids of each prompt: a decoder's texts after its bos, an encoder's in their frame.
        Raises HttpError for prompts that are too long."""

        def encode(text: str) -> Any:
            if self.config.is_encoder:
                return self.tokenizer.encode_pair(text, special=True)[0]
            return self.tokenizer.encode(text, bos=bos and self.starts_with_bos)

        rows = list[list[int]]()
        for text in texts:
            rows.append(text if isinstance(text, list) else encode(text))
            self.check_context(rows[-1], 0, "prompt")
            check_ids(rows[-1], self.config.embed.vocab, "prompt")
        return rows


def check_characters(texts: Sequence[object], param: str) -> None:
    """Raises HttpError 400 for more characters of texts than a request may hold."""
    total = sum(len(text) for text in texts if isinstance(text, str))
    refuse(
        total > MOST_CHARACTERS,
        f"The texts have {total} characters; {MOST_CHARACTERS} are read at most.",
        param,
    )


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises HttpError 400 for ids outside the vocabulary."""
    is_unknown = first_outside(ids, vocab_size) is not None
    refuse(is_unknown, f"Tokens are 0 to {vocab_size - 1}; {param} holds another.", param)


class Registry(Models):
    """Served models by id, in the order of the command line."""

    entries: Mapping[str, ServedModel]  # type: ignore[assignment]

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.entries = {served.id: served for served in models}
        self.sources = []

    def __getitem__(self, id: str | None) -> ServedModel:
        """The model of that id; None is the first. Raises HttpError 404."""
        first = next(iter(self.entries))
        names = (first if id is None else id, f"{first}:{id}")  # an adapter by its name alone
        name = next((name for name in names if name in self.entries), names[0])
        return self.entries[name] if name in self.entries else super().__getitem__(name)  # type: ignore[return-value]

    def close(self) -> None:
        """Ends every engine."""
        for served in self.entries.values():
            served.engine.close()


def submit(engine: Engine, requests: Sequence[Request | Encode]) -> list[RequestHandle]:
    """Submits all requests or none, with one channel. Raises as the engine does."""
    handles = list[RequestHandle]()
    try:
        engine.check_size(requests)
        for request in requests:
            handles.append(engine.submit(request, handles[0].channel if handles else None))
    except BaseException:
        cancel(handles)
        raise
    return handles


def cancel(handles: Iterable[RequestHandle]) -> None:
    for handle in handles:
        handle.cancel()


@dataclass(frozen=True)
class Context:
    """One request to the API: its connection, the model that answers, the server's metrics and
    threads.

    Its engine requests are cancelled when the client disconnects.
    """

    http: HttpRequest
    served: ServedModel
    metrics: Metrics
    lanes: Lanes
    size: int  # bytes of the body
    hold: Callable[[int], None]  # counts bytes of the answer, or gives them back. HttpError 503
    token_times: dict[tuple[RequestHandle, int], float] = field(default_factory=dict)

    @property
    def client(self) -> str:
        """Client id for fair scheduling: the API key's number, or the IP address."""
        return client_of(self.http)

    @cached_property
    def tally(self) -> RequestStats:
        return self.http.state.tally  # type: ignore[no-any-return]

    @cached_property
    def inter_token(self) -> Histogram:
        return self.metrics.inter_token.labels(self.served.id)

    def count_token(self, handle: RequestHandle, event: Event) -> None:
        """Counts a token of a choice, and the time since the one before it."""
        place = handle, event.index
        now = time.monotonic()
        self.tally.generated_tokens += 1
        if place in self.token_times:
            self.inter_token.observe(now - self.token_times[place])
        self.token_times[place] = now

    def require(self, ability: str, activity: str) -> None:
        """Refuses what the model cannot do."""
        if ability not in self.served.abilities:
            names = ", ".join(self.served.abilities) or "nothing else"
            message = f'"{self.served.id}" does not {activity}; it answers {names}.'
            raise HttpError(400, message, "model")

    async def until_disconnect(self, work: Awaitable[T]) -> T:
        return await until_disconnect(disconnected(self.http), work)

    async def run(self, size: float, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs ``work`` on so many bytes, characters or numbers in a thread, in turns between
        clients."""
        return await self.lanes.run(self.http, size, work, *args)

    async def run_heavy(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs ``work`` of which no size tells how long it takes."""
        return await self.run(math.inf, work, *args)

    async def encode_prompts(
        self, texts: Sequence[str | list[int]], bos: bool = True
    ) -> list[list[int]]:
        """Token ids of each prompt. Raises HttpError for prompts that are empty or too long."""
        self.served.check_lengths(texts, "prompt")
        refuse(not all(texts), "The prompt is empty; give a text, or token ids.", "prompt")
        return await self.run(sum(map(len, texts)), self.served.encode_prompts, texts, bos)

    async def submit(self, requests: Sequence[Request]) -> list[RequestHandle]:
        """Submits all requests or none, in a thread where it takes long: many continuations, names
        of values that are looked up, or edits that need a pass over another text."""
        engine = self.served.engine
        is_large = sum(request.size for request in requests) > BATCH_SIZE
        is_looked_into = any(request.edits or request.want for request in requests)
        if not is_large and not is_looked_into:
            return submit(engine, requests)
        tokens = sum(request.size * len(request.tokens) for request in requests)
        handles = list[RequestHandle]()
        cancelled = threading.Event()

        def submit_all() -> None:
            handles.extend(submit(engine, requests))
            if cancelled.is_set():
                cancel(handles)

        try:
            await self.run(math.inf if is_looked_into else tokens, submit_all)
        except BaseException:
            cancelled.set()
            cancel(handles)
            raise
        return handles

    async def events(
        self, handles: Sequence[RequestHandle], results: Sequence[Sequence[Event]] = ()
    ) -> AsyncGenerator[tuple[int, Event]]:
        """Yields the events of requests submitted together in order of arrival, each with the
        index of its handle, and raises their errors. Where one fails or the consumer stops early,
        all are cancelled. Those that wait for the consumer, or that stand in ``results``, are counted
        as held: HttpError 503."""
        id = self.served.id
        metrics = self.metrics
        tally = self.tally
        start = time.monotonic()
        started = set[int]()
        tally.model = id
        tally.prompt_tokens += sum(len(handle.request.tokens) for handle in handles)
        numbers = {handle: number for number, handle in enumerate(handles)}
        stop_account = self._account(handles, results)
        try:
            async for handle, event in handles[0].channel:
                now = time.monotonic()
                number = numbers[handle]
                if event.error is not None:
                    raise event.error
                if event.finish_reason == "cancelled":
                    raise EngineClosed("The server ends; try again later.")
                if number not in started:
                    waited = max(0.0, (handle.start_time or now) - start)
                    metrics.queue_time.labels(id).observe(waited)
                if event.token is not None:
                    self.count_token(handle, event)
                    if number not in started:
                        metrics.first_token.labels(id).observe(now - start)
                started.add(number)
                if event.finish_reason is not None:
                    tally.finish.append(event.finish_reason)
                if event.usage is not None:
                    metrics.full_time.labels(id).observe(now - start)
                    metrics.prompt_tokens.labels(id).inc(event.usage.prompt)
                    metrics.generation_tokens.labels(id).inc(event.usage.generated)
                    metrics.request_success.labels(id, event.finish_reason or "stop").inc()
                yield number, event
        finally:
            going = [handle for handle in handles if not handle.exhausted]
            metrics.request_success.labels(id, "abort").inc(len(going))
            cancel(going)
            stop_account()

    def _account(
        self, handles: Sequence[RequestHandle], results: Sequence[Sequence[Event]]
    ) -> Callable[[], None]:
        """Counts the bytes of events again and again until the function that it returns is called.
        Where the server holds as many as it may, the consumer's next event is that error."""
        channel = handles[0].channel
        top = max(getattr(handle.request, "logprobs", None) or 0 for handle in handles)
        size = EVENT_BYTES + SCORE_BYTES * top
        loop = asyncio.get_running_loop()
        size_counted = 0
        timer: Any  # of the next count

        def count() -> None:
            nonlocal size_counted, timer
            timer = loop.call_later(ACCOUNT_SECONDS, count)
            now = size * (channel.unread + sum(map(len, results)))
            try:
                self.hold(now - size_counted)
                size_counted = now
            except HttpError as error:
                timer.cancel()
                cancel(handles)
                channel.fail(handles[0], error)

        timer = loop.call_later(ACCOUNT_SECONDS, count)
        return lambda: timer.cancel()

    async def results(self, handles: Sequence[RequestHandle]) -> list[list[Event]]:
        """Events of each request. Raises ClientDisconnected."""
        results = [list[Event]() for _ in handles]

        async def collect() -> list[list[Event]]:
            async with aclosing(self.events(handles, results)) as events:
                async for number, event in events:
                    results[number].append(event)
            return results

        return await self.until_disconnect(collect())

    @property
    def batch_size(self) -> int:
        """Requests that one of the API has in the engine's queue at once."""
        return max(1, min(BATCH_SIZE, self.served.engine.max_queue // 2))

    async def run_batches(self, requests: Sequence[Request | Encode]) -> list[RequestHandle]:
        """Runs requests to completion in batches that fit the queue. Raises ClientDisconnected."""
        finished = list[RequestHandle]()
        engine = self.served.engine
        batch_size = self.batch_size
        for offset in range(0, len(requests), batch_size):
            handles = submit(engine, requests[offset : offset + batch_size])
            await self.results(handles)
            finished += handles
        return finished

    async def outputs(self, requests: Sequence[Encode]) -> list[Tensor]:
        """Outputs of encoder requests, in fp32."""
        handles = await self.run_batches(requests)
        return [handle.output.float().cpu() for handle in handles if handle.output is not None]


def parse_body(body: type[BaseModel], content: bytes | bytearray) -> Any:
    """Raises HttpError for invalid JSON and invalid fields."""
    return validated(body, from_json(content))


def validated(body: type[BaseModel], fields: Any) -> Any:
    """Raises HttpError for invalid fields."""
    try:
        return body.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error) from None


def endpoint(
    handler: Callable[[Context, Any], Awaitable[Any]],
    body: type[BaseModel],
    registry: Registry,
    metrics: Metrics,
    lanes: Lanes,
    bodies: ByteBudget,
    answers: ByteBudget,
) -> Callable[[HttpRequest], Awaitable[Response]]:
    """Starlette endpoint of what is computed from a JSON body.

    Bodies and large answers are read and written in threads: megabytes of JSON of one client never
    block the streams of others. A body counts as held until it is answered, or its stream begins;
    an answer until it was read.
    """

    async def answer(request: HttpRequest) -> Response:
        client = client_of(request)
        with bodies.account(client) as hold, ExitStack() as stack:
            hold_answer = stack.enter_context(answers.account(client))
            sent = await read_body(request, hold)
            size = len(sent)
            fields = await lanes.run(request, size, parse_body, body, sent)
            del sent
            served = registry[fields.model]
            context = Context(request, served, metrics, lanes, size, hold_answer)
            value = await handler(context, fields)
            if not isinstance(value, CountedResponse):
                content = small_json(value)
                if content is None:
                    content = await context.run_heavy(encode_json, value)
                hold_answer(len(content))
                value = json_response(content)
            value.close = stack.pop_all().close
            return value

    return answer

"""Routes of the page: each is a function of the request's fields, run in a thread that ends when the
browser disconnects. Clients take turns at the threads, as those of the API do."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...core.errors import UserError, need
from ...core.files import JsonObject
from ..asgi.event_stream import EventStream, format_event
from ..asgi.replies import (
    CancelCheck,
    ClientDisconnected,
    check_connected,
    from_json,
    handle_error,
    json_response,
    not_found,
    read_body,
)
from ..asgi.security import Guard
from ..lanes import ByteBudget, Lanes, client_of
from . import generation, measures, tensor_replies
from .events import Trainings
from .fields import (
    AttributionFields,
    BeamFields,
    CellFields,
    CircuitFields,
    CompareFields,
    ContextsFields,
    F,
    GenerateFields,
    LensFields,
    PageFields,
    PauseFields,
    PositionFields,
    ProbeFields,
    RunFields,
    SeriesFields,
    StepsFields,
    TensorFields,
    ThumbnailFields,
    read,
    within,
)
from .models import Models
from .runs import CachedTrace, TraceCache

T = TypeVar("T")
EXAMPLE = "example.trace"  # benchmarks/example.py
PASSES = 4  # threads for passes, of which one client has three at most
PAGE_EDGES = 200_000  # of a circuit: 20 MB of JSON
IMMUTABLE = "private, max-age=31536000, immutable"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".map": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".trace": "application/octet-stream",
}
MISSING_BUILD = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>glassformer</title><p>The '
    "page's build is missing "
    "from this installation; run <code>npm ci &amp;&amp; npm run build</code> in "
    "<code>web/</code>, or install a wheel."
)


def content_response(content: bytes, kind: str, cache: str = "no-cache") -> Response:
    """Response with the ETag of its content."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Response(content, 200, {"etag": tag, "cache-control": cache, "content-type": kind})


class Page:
    """Endpoints of the page, with its models, runs, tokenizers, trainings and static files."""

    def __init__(
        self, models: Models, trainings: Trainings | None = None, static: Path | None = None
    ) -> None:
        self.models = models
        self.runs = TraceCache(models)
        self.tokenizers = generation.Tokenizers(models)
        self.trainings = trainings or Trainings(None, models)
        self.lanes = Lanes(PASSES)
        self.bodies = ByteBudget()
        folder = static or Path(str(resources.files("glassformer"))) / "static"
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        # a name that is not here is never opened
        self.static = {path.name: path for path in paths if path.suffix in TYPES}
        self.example_loaded = threading.Event()  # a browser has what it needs to show the example

    async def read_fields(self, request: Request, model: type[F], hold: Callable[[int], None]) -> F:
        """Fields of a POST's JSON body, else of the query. Raises HttpError."""
        if request.method != "POST":
            return read(model, request.query_params)
        content = await read_body(request, hold)
        return await self.lanes.run(request, len(content), lambda: read(model, from_json(content)))

    async def run(self, request: Request, size: float, task: Callable[[CancelCheck], T]) -> T:
        """Runs ``task(check)`` in a thread, in turns between clients; ``check`` raises
        ClientDisconnected when the client disconnects."""
        gone = threading.Event()
        try:
            return await self.lanes.run(request, size, task, partial(check_connected, gone))
        finally:
            gone.set()

    def endpoint(
        self, size: float, task: Callable[..., Any], model: type[PageFields] = PageFields
    ) -> Callable[[Request], Awaitable[Response]]:
        """Starlette endpoint of ``task(fields, check, **path_params)``, work of that ``size``; what is
        no Response is answered as JSON."""

        async def answer(request: Request) -> Response:
            with self.bodies.account(client_of(request)) as hold:
                fields = await self.read_fields(request, model, hold)

                def run(check: CancelCheck) -> Response:
                    result = task(fields, check, **request.path_params)
                    return result if isinstance(result, Response) else json_response(result)

                response = await self.run(request, size, run)
            tag = response.headers.get("etag")
            if tag is not None and request.headers.get("if-none-match") == tag:
                headers = {name: response.headers[name] for name in ("etag", "cache-control")}
                return Response(None, 304, headers)
            return response

        return answer

    async def stream_steps(
        self, request: Request, first: Any, steps: Iterator[Any], gone: threading.Event
    ) -> AsyncGenerator[bytes]:
        """Server-sent events of a generator's (name, data), computed in threads until the reader
        disconnects."""
        step = first
        try:
            while step is not None:
                name, data = step
                yield format_event(data, None if name == "token" else name)
                step = await self.lanes.run(request, math.inf, next, steps, None)
        finally:
            gone.set()

    def file(self, fields: PageFields, check: CancelCheck, name: str = "index.html") -> Response:
        """Static file of the build, by name."""
        if name == "index.html" and name not in self.static:
            return Response(MISSING_BUILD, 200, media_type=TYPES[".html"])
        if name not in self.static:
            raise not_found(f'There is nothing called "{name[:80]}" here.')
        if name == EXAMPLE:
            self.example_loaded.set()
        path = self.static[name]
        return content_response(path.read_bytes(), TYPES[path.suffix])

    # ---------------------------------------------------------------------------- parts of runs

    def tensors(
        self,
        make: Callable[[CachedTrace, Any, CancelCheck], bytes],
        fields: PageFields,
        check: CancelCheck,
        run: str,
    ) -> Response:
        """Safetensors of a run; equal addresses have equal contents for good."""
        data = make(self.runs[run], fields, check)
        return content_response(data, "application/x-safetensors", IMMUTABLE)

    def cell(self, fields: CellFields, check: CancelCheck, run: str) -> JsonObject:
        """Explanation of the number at an address."""
        from ...sight import answers

        traced = self.runs[run]
        with traced.loaded.acquire(check):
            return answers.cell(traced.trace, fields.address, fields.terms)

    def lens(self, fields: LensFields, check: CancelCheck, run: str) -> JsonObject:
        """Logit lens at ``positions``, with the ``top`` tokens and those to ``track``."""
        from ...sight.lens import logit_lens

        return self._read_again(logit_lens, self.runs[run], check, dict(fields))

    def attribution(self, fields: AttributionFields, check: CancelCheck, run: str) -> JsonObject:
        """Direct contribution of each part of the model to a logit."""
        from ...sight.attribution import attribute

        traced = self.runs[run]
        options: dict[str, Any] = {"position": _position(traced, fields.position)}
        for name, text in (("token", fields.token), ("against", fields.against)):
            is_id = text.isascii() and text.isdigit() and len(text) < 10
            options[name] = int(text) if is_id else text or None
        return self._read_again(attribute, traced, check, options)

    def circuit(self, fields: CircuitFields, check: CancelCheck, run: str) -> JsonObject:
        """The circuit behind an answer, as ``glassformer circuit --json`` has it."""
        from ...sight.circuits import circuit

        traced = self.runs[run]
        edits, source = (traced.read_args[name] for name in ("edits", "source"))
        need(not edits, "A circuit is of the model as it is; take the edits out.")
        options = {name: value for name, value in fields if value != ""}
        other = options.pop("corrupted_source", None)
        options["source"] = (source, other) if other and source is not None else source
        options["position"] = _position(traced, fields.position)
        with traced.loaded.acquire(check) as give_way:
            options["progress"] = lambda *_: give_way()
            args = traced.loaded.model, traced.trace.tokenizer, traced.text
            answer = circuit(*args, **options)
            count = len(answer.edges)
            message = f"The page shows {PAGE_EDGES:,} edges, and this circuit has {count:,}; give a larger least."
            need(count <= PAGE_EDGES, message)
            return answer.to_dict()

    def _read_again(
        self,
        method: Callable[..., Any],
        run: CachedTrace,
        check: CancelCheck,
        options: dict[str, Any],
    ) -> JsonObject:
        """A method of inspection on the run's model and text."""
        with run.loaded.acquire(check):
            trace = run.trace
            options = run.read_args | options
            model = run.loaded.model
            answer: JsonObject = method(model, trace.tokenizer, run.text, **options).to_dict()
            return answer

    def vocabulary(self, fields: PageFields, check: CancelCheck, name: str) -> Response:
        """Vocabulary of a tokenizer, packed; nothing of a model that has none."""
        from ...sight import answers

        entry = self.models.entries.get(name)
        is_wordless = entry is not None and not entry.has_tokenizer()
        data = b"" if is_wordless else answers.vocabulary(self.tokenizers[name])
        return content_response(data, "application/octet-stream")

    def experts(self, fields: PageFields, check: CancelCheck, run: str) -> JsonObject:
        """Expert loads of each mixture, and each token's expert with its weight."""
        from ...sight import answers

        traced = self.runs[run]
        loads = answers.experts(traced.trace, lambda: traced.loaded.acquire(check))
        need(bool(loads["layers"]), "This model has no mixture of experts.")
        return loads

    def export(self, fields: PageFields, check: CancelCheck, run: str, kind: str) -> Response:
        """Run as a file to download, sandboxed so that it runs no script of this origin."""
        from ...sight import export

        traced = self.runs[run]
        need(kind in ("html", "trace"), "A run is saved as export.html or export.trace.")
        with traced.loaded.acquire(check):
            if kind == "trace":
                data = export.tensors_of(traced.trace)
                suffix = "safetensors"
            else:
                name = traced.answer["model"]
                suffix = "html"
                data = export.page(traced.trace, f"glassformer: {name}", name=name).encode()
        headers = {
            "content-disposition": f'attachment; filename="{traced.id}.{suffix}"',
            "content-security-policy": "sandbox",
            "cache-control": "no-store",
        }
        return Response(data, 200, headers, TYPES[f".{kind}"])

    # ----------------------------------------------------------------- generation and trainings

    async def generate(self, request: Request) -> Response:
        """Token-by-token generation as server-sent events."""
        with self.bodies.account(client_of(request)) as hold:
            fields = await self.read_fields(request, GenerateFields, hold)
        gone = threading.Event()
        steps = generation.generate(self.models, fields, partial(check_connected, gone))
        # what is wrong is said before the stream begins
        try:
            first = await self.lanes.run(request, math.inf, next, steps)
        except BaseException:
            gone.set()
            raise
        return EventStream(self.stream_steps(request, first, steps, gone))

    def probe(self, fields: ProbeFields, check: CancelCheck, name: str) -> JsonObject:
        """One text through the latest checkpoints of a training."""
        return self.trainings.probe(self.runs, name, fields.text, check)

    async def events(self, request: Request) -> Response:
        """New rows of trainings, as a stream or, with ``poll``, at once."""
        query = request.query_params
        names = [
            topic.removeprefix("train:") for topic in query.get("topics", "").split(",") if topic
        ]
        since = request.headers.get("last-event-id", query.get("since", ""))
        cursors = self.trainings.cursors(names, since)
        if query.get("poll"):
            return json_response(await self.lanes.run(request, 0, self.trainings.updates, cursors))
        return EventStream(self.trainings.stream(cursors, partial(self.lanes.run, request, 0)))

    def routes(self) -> list[Route]:
        """Route table of the page."""
        run = "/api/runs/{run}"
        train = "/api/train/{name}"
        models = self.models
        tokenizers = self.tokenizers
        trainings = self.trainings
        get: dict[str, tuple[Any, ...]] = {
            "/": (0, self.file),
            "/api/models": (0, lambda fields, check: models.cards()),
            "/api/heads/{name:path}": (math.inf, partial(measures.heads, models)),
            run: (0, lambda fields, check, run: self.runs[run].answer),
            f"{run}/check": (
                math.inf,
                lambda fields, check, run: self.runs[run].measure_error(check),
            ),
            f"{run}/t": (0, partial(self.tensors, tensor_replies.values), TensorFields),
            f"{run}/thumbs": (0, partial(self.tensors, tensor_replies.thumbnails), ThumbnailFields),
            f"{run}/logits": (0, partial(self.tensors, tensor_replies.logits), PositionFields),
            f"{run}/cell": (0, self.cell, CellFields),
            f"{run}/attribution": (math.inf, self.attribution, AttributionFields),
            f"{run}/experts": (math.inf, self.experts),
            f"{run}/export.{{kind}}": (math.inf, self.export),
            "/api/tokenizers": (0, tokenizers.listing),
            "/api/vocab/{name:path}": (math.inf, self.vocabulary),
            "/api/train": (0, trainings.listing),
            f"{train}/series": (0, trainings.series, SeriesFields),
            f"{train}/samples": (0, trainings.samples),
            f"{train}/routing": (0, trainings.routing),
            f"{train}/probe": (math.inf, self.probe, ProbeFields),
            "/{name}": (0, self.file),
        }
        post: dict[str, tuple[Any, ...]] = {
            "/api/runs": (math.inf, self.runs.make, RunFields),
            "/api/contexts": (math.inf, partial(measures.contexts, models), ContextsFields),
            f"{run}/lens": (math.inf, self.lens, LensFields),
            f"{run}/circuit": (math.inf, self.circuit, CircuitFields),
            "/api/beam": (math.inf, partial(generation.beams, models), BeamFields),
            "/api/tokenize": (math.inf, tokenizers.compare, CompareFields),
            "/api/tokenize/steps": (math.inf, tokenizers.steps, StepsFields),
            f"{train}/stop": (0, trainings.stop),
            f"{train}/pause": (0, trainings.pause, PauseFields),
        }
        return [
            Route("/api/generate", self.generate, methods=["POST"]),
            Route("/api/events", self.events),
            *(Route(path, self.endpoint(*task), methods=["POST"]) for path, task in post.items()),
            *(Route(path, self.endpoint(*task)) for path, task in get.items()),
        ]


def _position(run: CachedTrace, position: int | None) -> int | None:
    """A place in the run's text. Raises UserError for one beyond it."""
    length = run.trace.tokens.shape[1]
    if position is not None:
        within("position", position, -length, length - 1)
    return position


def application(page: Page, hosts: frozenset[str] | None, token: str | None = None) -> Guard:
    """ASGI application: the page's routes behind the guard."""
    return Guard(starlette_app(page), hosts, token)


def starlette_app(page: Page) -> Starlette:
    """Starlette application without the guard."""
    kinds = (UserError, HTTPException, ClientDisconnected, Exception)
    return Starlette(routes=page.routes(), exception_handlers=dict.fromkeys(kinds, handle_error))

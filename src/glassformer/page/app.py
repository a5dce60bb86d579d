"""Routes of the page and their error responses; computations run in threads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..asgi.security import Guard
from ..errors import UserError, need
from . import measures, wire
from .events import Trainings
from .models import CancelCheck, Models, NotFound
from .replies import (
    ClientDisconnected,
    check_connected,
    disconnect_response,
    etag_response,
    event_response,
    json_response,
    parse_token,
    query_int,
    read_body,
    run_in_thread,
    server_error_response,
    stream_events,
    unknown_route_response,
    user_error_response,
)
from .runs import Run, Runs
from .words import Tokenizers, beams, generate

EXAMPLE = "example.trace"  # benchmarks/example.py
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


class Page:
    """Endpoints of the page, with its models, runs, tokenizers, trainings and static files."""

    def __init__(
        self, models: Models, trainings: Trainings | None = None, static: Path | None = None
    ) -> None:
        self.models, self.runs, self.tokenizers = models, Runs(models), Tokenizers(models)
        self.trainings = trainings or Trainings(None, models)
        folder = static or Path(str(resources.files("glassformer"))) / "static"
        files = (
            [path for path in folder.iterdir() if path.suffix in TYPES] if folder.is_dir() else []
        )
        # a name that is not here is never opened
        self.static = {path.name: path for path in sorted(files)}
        self.example_loaded = threading.Event()  # a browser has what it needs to show the example

    # ------------------------------------------------------------------------------ the page

    async def index(self, request: Request) -> Response:
        """The page itself."""
        if "index.html" not in self.static:
            return Response(MISSING_BUILD, 200, media_type=TYPES[".html"])
        return self._file("index.html", request)

    async def file(self, request: Request) -> Response:
        """Static file of the build, by name."""
        name = request.path_params["name"]
        if name not in self.static:
            raise NotFound(f'There is nothing called "{name[:80]}" here.')
        if name == EXAMPLE:
            self.example_loaded.set()
        return self._file(name, request)

    def _file(self, name: str, request: Request) -> Response:
        path = self.static[name]
        data = path.read_bytes()
        return etag_response(request, data, TYPES[path.suffix], "no-cache")

    # -------------------------------------------------------------------------------- models

    async def list_models(self, request: Request) -> Response:
        """GET api/models"""
        return json_response(await to_thread.run_sync(self.models.cards))

    async def create_run(self, request: Request) -> Response:
        """POST api/runs"""
        payload = await read_body(request)
        return json_response(await run_in_thread(request, partial(self.runs.make, payload)))

    async def heads(self, request: Request) -> Response:
        """GET api/heads/{model}"""
        name = request.path_params["name"]
        return json_response(
            await run_in_thread(request, lambda check: measures.heads(self.models, name, check))
        )

    async def contexts(self, request: Request) -> Response:
        """POST api/contexts"""
        payload = await read_body(request)
        return json_response(
            await run_in_thread(
                request, lambda check: measures.contexts(self.models, payload, check)
            )
        )

    async def get_run(self, request: Request) -> Response:
        """GET api/runs/{run}: the response of its creation."""
        return json_response(self._run(request).answer)

    async def check(self, request: Request) -> Response:
        """GET api/runs/{run}/check"""
        return json_response(await run_in_thread(request, self._run(request).measure_error))

    # ---------------------------------------------------------------------------- parts of runs

    async def values(self, request: Request) -> Response:
        """GET api/runs/{run}/t"""
        return await self._tensors(request, wire.values)

    async def thumbs(self, request: Request) -> Response:
        """GET api/runs/{run}/thumbs"""
        return await self._tensors(request, wire.thumbnails)

    async def logits(self, request: Request) -> Response:
        """GET api/runs/{run}/logits"""
        return await self._tensors(request, wire.logits)

    async def _tensors(
        self, request: Request, make: Callable[[Run, Any, CancelCheck], bytes]
    ) -> Response:
        run = self._run(request)
        tag = f'"{hashlib.sha256(f"{run.id} {request.url.path} {request.url.query}".encode()).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": IMMUTABLE}
        if request.headers.get("if-none-match") == tag:
            return Response(None, 304, headers)
        query = dict(request.query_params)
        data = await run_in_thread(request, lambda check: make(run, query, check))
        return Response(data, 200, headers, "application/x-safetensors")

    async def cell(self, request: Request) -> Response:
        """GET api/runs/{run}/cell"""
        from ..inspection import answers

        trace_run, address = self._run(request), request.query_params.get("address", "")
        need(
            0 < len(address) <= 500, 'There is no address; give one, such as address="logits[0,0]".'
        )
        terms = query_int(request, "terms", 64, 0, 20_000)

        def explain_cell(check: CancelCheck) -> dict[str, Any]:
            with trace_run.loaded.acquire(check):
                return answers.cell(trace_run.trace, address, terms)

        return json_response(await run_in_thread(request, explain_cell))

    async def lens(self, request: Request) -> Response:
        """POST api/runs/{run}/lens"""
        from ..inspection import lens as lenses

        run, payload = self._run(request), await read_body(request)
        positions, track, top = (
            payload.get("positions"),
            payload.get("track") or [],
            payload.get("top", 5),
        )
        need(
            positions is None or (isinstance(positions, list) and 0 < len(positions) <= 16),
            "positions: 1 to 16.",
        )
        need(
            all(type(position) is int for position in positions or []),
            "positions are whole numbers.",
        )
        valid = (
            isinstance(track, list)
            and len(track) <= 16
            and all(isinstance(token, int | str) for token in track)
        )
        need(valid, "track is a list of tokens, 16 at most.")
        need(type(top) is int and 1 <= top <= 100, "top is from 1 to 100.")

        def run_lens(check: CancelCheck) -> dict[str, Any]:
            with run.loaded.acquire(check):
                trace = run.trace
                options: Any = {**run.read_args, "positions": positions, "track": track, "top": top}
                return lenses.logit_lens(
                    trace.model, trace.tokenizer, run.text, **options
                ).to_dict()

        return json_response(await run_in_thread(request, run_lens))

    async def attribution(self, request: Request) -> Response:
        """GET api/runs/{run}/attribution"""
        from ..inspection.attribution import attribute

        run, query = self._run(request), request.query_params
        length = run.trace.tokens.shape[1]
        position = (
            query_int(request, "position", length - 1, -length, length - 1)
            if "position" in query
            else None
        )
        token, against = (parse_token(query.get(name)) for name in ("token", "against"))

        def run_attribution(check: CancelCheck) -> dict[str, Any]:
            with run.loaded.acquire(check):
                trace = run.trace
                options: Any = {
                    **run.read_args,
                    "token": token,
                    "against": against,
                    "position": position,
                }
                return attribute(trace.model, trace.tokenizer, run.text, **options).to_dict()

        return json_response(await run_in_thread(request, run_attribution))

    async def experts(self, request: Request) -> Response:
        """GET api/runs/{run}/experts"""
        run = self._run(request)
        return json_response(await run_in_thread(request, lambda check: wire.experts(run, check)))

    async def export(self, request: Request) -> Response:
        """GET api/runs/{run}/export.html, .trace: a download, sandboxed so that it runs no script
        of this origin."""
        run, kind = self._run(request), request.path_params["kind"]
        need(kind in ("html", "trace"), "A run is saved as export.html or export.trace.")

        def export_file(check: CancelCheck) -> bytes:
            with run.loaded.acquire(check):
                if kind == "trace":
                    return export.tensors_of(run.trace)
                name = run.answer["model"]
                return export.page(run.trace, f"glassformer: {name}", name=name).encode()

        from ..inspection import export

        data = await run_in_thread(request, export_file)
        headers = {
            "content-disposition": "attachment; "
            f'filename="{run.id}.{"html" if kind == "html" else "safetensors"}"'
        }
        headers |= {"content-security-policy": "sandbox", "cache-control": "no-store"}
        return Response(
            data, 200, headers, TYPES[".html"] if kind == "html" else "application/octet-stream"
        )

    def _run(self, request: Request) -> Run:
        return self.runs[request.path_params["run"]]

    # --------------------------------------------------------------------------------- words

    async def generate(self, request: Request) -> Response:
        """POST api/generate"""
        payload = await read_body(request)
        gone = threading.Event()
        steps = generate(self.models, payload, partial(check_connected, gone))
        # what is wrong is said before the stream begins
        first = await run_in_thread(request, lambda check: next(steps))
        return event_response(stream_events(first, steps, gone))

    async def beam(self, request: Request) -> Response:
        """POST api/beam"""
        payload = await read_body(request)
        return json_response(
            await run_in_thread(request, lambda check: beams(self.models, payload, check))
        )

    async def tokenize(self, request: Request) -> Response:
        """POST api/tokenize"""
        payload = await read_body(request)
        return json_response(await to_thread.run_sync(self.tokenizers.compare, payload))

    async def tokenize_steps(self, request: Request) -> Response:
        """POST api/tokenize/steps"""
        payload = await read_body(request)
        return json_response(await to_thread.run_sync(self.tokenizers.steps, payload))

    async def list_tokenizers(self, request: Request) -> Response:
        """GET api/tokenizers"""
        return json_response(await to_thread.run_sync(self.tokenizers.listing))

    async def vocabulary(self, request: Request) -> Response:
        """GET api/vocab/{name}"""
        data = await to_thread.run_sync(self.tokenizers.vocabulary, request.path_params["name"])
        return etag_response(request, data, "application/octet-stream", "no-cache")

    # ------------------------------------------------------------------------------- trainings

    async def train(self, request: Request) -> Response:
        """GET api/train"""
        return json_response(await to_thread.run_sync(self.trainings.listing))

    async def series(self, request: Request) -> Response:
        """GET api/train/{name}/series"""
        since, most = (
            query_int(request, "since", 0, 0, 1 << 50),
            query_int(request, "most", 2000, 2, 20_000),
        )
        name = request.path_params["name"]
        return json_response(await to_thread.run_sync(self.trainings.series, name, since, most))

    async def samples(self, request: Request) -> Response:
        """GET api/train/{name}/samples"""
        return json_response(
            await to_thread.run_sync(self.trainings.samples, request.path_params["name"])
        )

    async def routing(self, request: Request) -> Response:
        """GET api/train/{name}/routing"""
        return json_response(
            await to_thread.run_sync(self.trainings.routing, request.path_params["name"])
        )

    async def stop(self, request: Request) -> Response:
        """POST api/train/{name}/stop"""
        await read_body(request)
        return json_response(
            await to_thread.run_sync(self.trainings.stop, request.path_params["name"])
        )

    async def pause(self, request: Request) -> Response:
        """POST api/train/{name}/pause"""
        paused, name = (await read_body(request)).get("paused"), request.path_params["name"]
        return json_response(await to_thread.run_sync(self.trainings.pause, name, paused))

    async def probe(self, request: Request) -> Response:
        """GET api/train/{name}/probe"""
        name, query = request.path_params["name"], request.query_params
        text = query.get("text", "")
        need(len(text) <= 2000, "A probe has 2,000 characters at most.")
        return json_response(
            await run_in_thread(
                request, lambda check: self.trainings.probe(self.runs, name, text, check)
            )
        )

    async def events(self, request: Request) -> Response:
        """GET api/events"""
        query = request.query_params
        names = [
            topic.removeprefix("train:") for topic in query.get("topics", "").split(",") if topic
        ]
        since = request.headers.get("last-event-id", query.get("since", ""))
        cursors = self.trainings.cursors(names, since)
        if query.get("poll"):
            return json_response(await to_thread.run_sync(self.trainings.updates, cursors))
        return event_response(self.trainings.stream(cursors))

    def routes(self) -> list[Route]:
        """Route table of the page."""
        run, train, post = "/api/runs/{run}", "/api/train/{name}", ["POST"]
        return [
            Route("/", self.index),
            Route("/api/models", self.list_models),
            Route("/api/runs", self.create_run, methods=post),
            Route("/api/heads/{name:path}", self.heads),
            Route("/api/contexts", self.contexts, methods=post),
            Route(run, self.get_run),
            Route(f"{run}/check", self.check),
            Route(f"{run}/t", self.values),
            Route(f"{run}/thumbs", self.thumbs),
            Route(f"{run}/logits", self.logits),
            Route(f"{run}/cell", self.cell),
            Route(f"{run}/lens", self.lens, methods=post),
            Route(f"{run}/attribution", self.attribution),
            Route(f"{run}/experts", self.experts),
            Route(f"{run}/export.{{kind}}", self.export),
            Route("/api/generate", self.generate, methods=post),
            Route("/api/beam", self.beam, methods=post),
            Route("/api/tokenize", self.tokenize, methods=post),
            Route("/api/tokenize/steps", self.tokenize_steps, methods=post),
            Route("/api/tokenizers", self.list_tokenizers),
            Route("/api/vocab/{name:path}", self.vocabulary),
            Route("/api/train", self.train),
            Route(f"{train}/series", self.series),
            Route(f"{train}/samples", self.samples),
            Route(f"{train}/routing", self.routing),
            Route(f"{train}/stop", self.stop, methods=post),
            Route(f"{train}/pause", self.pause, methods=post),
            Route(f"{train}/probe", self.probe),
            Route("/api/events", self.events),
            Route("/{name}", self.file),
        ]


def application(page: Page, hosts: frozenset[str] | None, token: str | None = None) -> Guard:
    """ASGI application: the page's routes behind the guard."""
    return Guard(starlette_app(page), hosts, token)


def starlette_app(page: Page) -> Starlette:
    """Starlette application without the guard."""
    handlers: dict[Any, Any] = {
        UserError: user_error_response,
        ClientDisconnected: disconnect_response,
        404: unknown_route_response,
        405: unknown_route_response,
        Exception: server_error_response,
    }
    return Starlette(routes=page.routes(), exception_handlers=handlers)

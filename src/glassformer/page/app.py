"""The routes of the page, and how an answer or a mistake is sent; what computes does so in a
thread."""

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
from .models import Check, Missing, Models
from .replies import (
    Gone,
    answer,
    body,
    broken,
    check_that,
    events,
    left,
    mistake,
    streamed,
    tagged,
    token_of,
    unknown,
    whole,
    work,
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
UNBUILT = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>glassformer</title><p>The '
    "page's build is missing "
    "from this installation; run <code>npm ci &amp;&amp; npm run build</code> in "
    "<code>web/</code>, or install a wheel."
)


class Page:
    """What the routes share: models, runs, tokenizers, trainings and the files of the build."""

    def __init__(
        self, models: Models, trainings: Trainings | None = None, static: Path | None = None
    ) -> None:
        self.models, self.runs, self.tokenizers = models, Runs(models), Tokenizers(models)
        self.trainings = trainings or Trainings(None, models)
        folder = static or Path(str(resources.files("glassformer"))) / "static"
        found = (
            [path for path in folder.iterdir() if path.suffix in TYPES] if folder.is_dir() else []
        )
        # a name that is not here is never opened
        self.static = {path.name: path for path in sorted(found)}
        self.shown = threading.Event()  # a browser has what it needs to show the example

    # ------------------------------------------------------------------------------ the page

    async def index(self, request: Request) -> Response:
        """The page itself."""
        if "index.html" not in self.static:
            return Response(UNBUILT, 200, media_type=TYPES[".html"])
        return self._file("index.html", request)

    async def file(self, request: Request) -> Response:
        """A file of the build, by its name alone."""
        name = request.path_params["name"]
        if name not in self.static:
            raise Missing(f'There is nothing called "{name[:80]}" here.')
        if name == EXAMPLE:
            self.shown.set()
        return self._file(name, request)

    def _file(self, name: str, request: Request) -> Response:
        path = self.static[name]
        data = path.read_bytes()
        return tagged(request, data, TYPES[path.suffix], "no-cache")

    # -------------------------------------------------------------------------------- models

    async def cards(self, request: Request) -> Response:
        """GET api/models"""
        return answer(await to_thread.run_sync(self.models.cards))

    async def make(self, request: Request) -> Response:
        """POST api/runs"""
        asked = await body(request)
        return answer(await work(request, partial(self.runs.make, asked)))

    async def heads(self, request: Request) -> Response:
        """GET api/heads/{model}"""
        name = request.path_params["name"]
        return answer(await work(request, lambda check: measures.heads(self.models, name, check)))

    async def contexts(self, request: Request) -> Response:
        """POST api/contexts"""
        asked = await body(request)
        return answer(
            await work(request, lambda check: measures.contexts(self.models, asked, check))
        )

    async def again(self, request: Request) -> Response:
        """GET api/runs/{run}: what was answered when it was made."""
        return answer(self._run(request).answer)

    async def check(self, request: Request) -> Response:
        """GET api/runs/{run}/check"""
        return answer(await work(request, self._run(request).checked))

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
        self, request: Request, make: Callable[[Run, Any, Check], bytes]
    ) -> Response:
        run = self._run(request)
        tag = f'"{hashlib.sha256(f"{run.id} {request.url.path} {request.url.query}".encode()).hexdigest()[:32]}"'
        sent = {"etag": tag, "cache-control": IMMUTABLE}
        if request.headers.get("if-none-match") == tag:
            return Response(None, 304, sent)
        asked = dict(request.query_params)
        data = await work(request, lambda check: make(run, asked, check))
        return Response(data, 200, sent, "application/x-safetensors")

    async def cell(self, request: Request) -> Response:
        """GET api/runs/{run}/cell"""
        from ..inspection import answers

        run, address = self._run(request), request.query_params.get("address", "")
        need(
            0 < len(address) <= 500, 'There is no address; give one, such as address="logits[0,0]".'
        )
        terms = whole(request, "terms", 64, 0, 20_000)

        def explained(check: Check) -> dict[str, Any]:
            with run.loaded.held(check):
                return answers.cell(run.trace, address, terms)

        return answer(await work(request, explained))

    async def lens(self, request: Request) -> Response:
        """POST api/runs/{run}/lens"""
        from ..inspection import lens as lenses

        run, asked = self._run(request), await body(request)
        positions, track, top = (
            asked.get("positions"),
            asked.get("track") or [],
            asked.get("top", 5),
        )
        need(
            positions is None or (isinstance(positions, list) and 0 < len(positions) <= 16),
            "positions: 1 to 16.",
        )
        need(all(type(one) is int for one in positions or []), "positions are whole numbers.")
        good = (
            isinstance(track, list)
            and len(track) <= 16
            and all(isinstance(one, int | str) for one in track)
        )
        need(good, "track is a list of tokens, 16 at most.")
        need(type(top) is int and 1 <= top <= 100, "top is from 1 to 100.")

        def read(check: Check) -> dict[str, Any]:
            with run.loaded.held(check):
                trace = run.trace
                how: Any = {**run.asked, "positions": positions, "track": track, "top": top}
                return lenses.logit_lens(trace.model, trace.tokenizer, run.text, **how).to_dict()

        return answer(await work(request, read))

    async def attribution(self, request: Request) -> Response:
        """GET api/runs/{run}/attribution"""
        from ..inspection.attribution import attribute

        run, query = self._run(request), request.query_params
        length = run.trace.tokens.shape[1]
        position = (
            whole(request, "position", length - 1, -length, length - 1)
            if "position" in query
            else None
        )
        token, against = (token_of(query.get(name)) for name in ("token", "against"))

        def taken_apart(check: Check) -> dict[str, Any]:
            with run.loaded.held(check):
                trace = run.trace
                how: Any = {**run.asked, "token": token, "against": against, "position": position}
                return attribute(trace.model, trace.tokenizer, run.text, **how).to_dict()

        return answer(await work(request, taken_apart))

    async def experts(self, request: Request) -> Response:
        """GET api/runs/{run}/experts"""
        run = self._run(request)
        return answer(await work(request, lambda check: wire.experts(run, check)))

    async def export(self, request: Request) -> Response:
        """GET api/runs/{run}/export.html, .trace: one file to keep, a download and no page of this
        server."""
        run, kind = self._run(request), request.path_params["kind"]
        need(kind in ("html", "trace"), "A run is saved as export.html or export.trace.")

        def made(check: Check) -> bytes:
            with run.loaded.held(check):
                if kind == "trace":
                    return export.tensors_of(run.trace)
                name = run.answer["model"]
                return export.page(run.trace, f"glassformer: {name}", name=name).encode()

        from ..inspection import export

        data = await work(request, made)
        sent = {
            "content-disposition": "attachment; "
            f'filename="{run.id}.{"html" if kind == "html" else "safetensors"}"'
        }
        sent |= {"content-security-policy": "sandbox", "cache-control": "no-store"}
        return Response(
            data, 200, sent, TYPES[".html"] if kind == "html" else "application/octet-stream"
        )

    def _run(self, request: Request) -> Run:
        return self.runs[request.path_params["run"]]

    # --------------------------------------------------------------------------------- words

    async def generate(self, request: Request) -> Response:
        """POST api/generate"""
        asked = await body(request)
        gone = threading.Event()
        steps = generate(self.models, asked, partial(check_that, gone))
        # what is wrong is said before the stream begins
        first = await work(request, lambda check: next(steps))
        return events(streamed(first, steps, gone))

    async def beam(self, request: Request) -> Response:
        """POST api/beam"""
        asked = await body(request)
        return answer(await work(request, lambda check: beams(self.models, asked, check)))

    async def tokenize(self, request: Request) -> Response:
        """POST api/tokenize"""
        asked = await body(request)
        return answer(await to_thread.run_sync(self.tokenizers.compare, asked))

    async def tokenize_steps(self, request: Request) -> Response:
        """POST api/tokenize/steps"""
        asked = await body(request)
        return answer(await to_thread.run_sync(self.tokenizers.steps, asked))

    async def list_tokenizers(self, request: Request) -> Response:
        """GET api/tokenizers"""
        return answer(await to_thread.run_sync(self.tokenizers.listing))

    async def vocabulary(self, request: Request) -> Response:
        """GET api/vocab/{name}"""
        data = await to_thread.run_sync(self.tokenizers.vocabulary, request.path_params["name"])
        return tagged(request, data, "application/octet-stream", "no-cache")

    # ------------------------------------------------------------------------------- trainings

    async def train(self, request: Request) -> Response:
        """GET api/train"""
        return answer(await to_thread.run_sync(self.trainings.listing))

    async def series(self, request: Request) -> Response:
        """GET api/train/{name}/series"""
        since, most = (
            whole(request, "since", 0, 0, 1 << 50),
            whole(request, "most", 2000, 2, 20_000),
        )
        name = request.path_params["name"]
        return answer(await to_thread.run_sync(self.trainings.series, name, since, most))

    async def samples(self, request: Request) -> Response:
        """GET api/train/{name}/samples"""
        return answer(await to_thread.run_sync(self.trainings.samples, request.path_params["name"]))

    async def routing(self, request: Request) -> Response:
        """GET api/train/{name}/routing"""
        return answer(await to_thread.run_sync(self.trainings.routing, request.path_params["name"]))

    async def stop(self, request: Request) -> Response:
        """POST api/train/{name}/stop"""
        await body(request)
        return answer(await to_thread.run_sync(self.trainings.stop, request.path_params["name"]))

    async def pause(self, request: Request) -> Response:
        """POST api/train/{name}/pause"""
        wanted, name = (await body(request)).get("paused"), request.path_params["name"]
        return answer(await to_thread.run_sync(self.trainings.pause, name, wanted))

    async def probe(self, request: Request) -> Response:
        """GET api/train/{name}/probe"""
        name, query = request.path_params["name"], request.query_params
        text = query.get("text", "")
        need(len(text) <= 2000, "A probe has 2,000 characters at most.")
        return answer(
            await work(request, lambda check: self.trainings.probe(self.runs, name, text, check))
        )

    async def events(self, request: Request) -> Response:
        """GET api/events"""
        query = request.query_params
        names = [one.removeprefix("train:") for one in query.get("topics", "").split(",") if one]
        since = request.headers.get("last-event-id", query.get("since", ""))
        cursors = self.trainings.cursors(names, since)
        if query.get("poll"):
            return answer(await to_thread.run_sync(self.trainings.news, cursors))
        return events(self.trainings.stream(cursors))

    def routes(self) -> list[Route]:
        """Every route of the contract."""
        run, train, post = "/api/runs/{run}", "/api/train/{name}", ["POST"]
        return [
            Route("/", self.index),
            Route("/api/models", self.cards),
            Route("/api/runs", self.make, methods=post),
            Route("/api/heads/{name:path}", self.heads),
            Route("/api/contexts", self.contexts, methods=post),
            Route(run, self.again),
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
    """The server: the page's routes behind the guard."""
    return Guard(routed(page), hosts, token)


def routed(page: Page) -> Starlette:
    """The page's routes, for whoever may ask them."""
    told: dict[Any, Any] = {
        UserError: mistake,
        Gone: left,
        404: unknown,
        405: unknown,
        Exception: broken,
    }
    return Starlette(routes=page.routes(), exception_handlers=told)

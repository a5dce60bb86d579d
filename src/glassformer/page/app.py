"""The routes of the page, and how an answer or a mistake is sent; what computes does so in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .. import files
from ..errors import UserError, need, note
from . import wire
from .events import Trainings
from .models import Check, Missing, Models
from .runs import Run, Runs
from .security import Guard
from .words import Tokenizers, generate

T = TypeVar("T")
MOST_BODY = 8 << 20
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
}
UNBUILT = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>glassformer</title><p>The page\'s build is missing '
    "from this installation; run <code>npm ci &amp;&amp; npm run build</code> in <code>web/</code>, or install a wheel."
)


class Gone(Exception):
    """Nobody waits for the answer any more."""


class Page:
    """What the routes share: models, runs, tokenizers, trainings and the files of the build."""

    def __init__(self, models: Models, trainings: Trainings | None = None, static: Path | None = None) -> None:
        self.models, self.runs, self.tokenizers = models, Runs(models), Tokenizers(models)
        self.trainings = trainings or Trainings(None, models)
        folder = static or Path(str(resources.files("glassformer"))) / "static"
        found = [path for path in folder.iterdir() if path.suffix in TYPES] if folder.is_dir() else []
        self.static = {path.name: path for path in sorted(found)}  # a name that is not here is never opened

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

    async def again(self, request: Request) -> Response:
        """GET api/runs/{run}: what was answered when it was made."""
        return answer(self._run(request).answer)

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

    async def _tensors(self, request: Request, make: Callable[[Run, Any, Check], bytes]) -> Response:
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
        need(0 < len(address) <= 500, 'There is no address; give one, such as address="logits[0,0]".')
        terms = whole(request, "terms", 64, 0, 20_000)

        def explained(check: Check) -> dict[str, Any]:
            with run.loaded.held(check):
                return answers.cell(run.trace, address, terms)

        return answer(await work(request, explained))

    async def lens(self, request: Request) -> Response:
        """POST api/runs/{run}/lens"""
        from ..inspection import lens as lenses

        run, asked = self._run(request), await body(request)
        positions, track, top = asked.get("positions"), asked.get("track") or [], asked.get("top", 5)
        unedited(run, "The lens")
        need(positions is None or (isinstance(positions, list) and 0 < len(positions) <= 16), "positions: 1 to 16.")
        need(all(type(one) is int for one in positions or []), "positions are whole numbers.")
        good = isinstance(track, list) and len(track) <= 16 and all(isinstance(one, int | str) for one in track)
        need(good, "track is a list of tokens, 16 at most.")
        need(type(top) is int and 1 <= top <= 100, "top is from 1 to 100.")

        def read(check: Check) -> dict[str, Any]:
            with run.loaded.held(check):
                trace = run.trace
                ids = {"source": trace.source, "positions": positions, "track": track, "top": top}
                return lenses.logit_lens(trace.model, trace.tokenizer, trace.tokens, **ids).to_dict()

        return answer(await work(request, read))

    async def attribution(self, request: Request) -> Response:
        """GET api/runs/{run}/attribution"""
        from ..inspection.attribution import attribute

        run, query = self._run(request), request.query_params
        unedited(run, "Attribution")
        length = run.trace.tokens.shape[1]
        position = whole(request, "position", length - 1, -length, length - 1) if "position" in query else None
        token, against = (_token(query.get(name)) for name in ("token", "against"))

        def taken_apart(check: Check) -> dict[str, Any]:
            with run.loaded.held(check):
                trace = run.trace
                asked: Any = {"source": trace.source, "token": token, "against": against, "position": position}
                return attribute(trace.model, trace.tokenizer, trace.tokens, **asked).to_dict()

        return answer(await work(request, taken_apart))

    async def experts(self, request: Request) -> Response:
        """GET api/runs/{run}/experts"""
        run = self._run(request)
        return answer(await work(request, lambda check: wire.experts(run, check)))

    def _run(self, request: Request) -> Run:
        return self.runs[request.path_params["run"]]

    # --------------------------------------------------------------------------------- words

    async def generate(self, request: Request) -> Response:
        """POST api/generate"""
        asked = await body(request)
        gone = threading.Event()
        steps = generate(self.models, asked, partial(_check, gone))
        first = await work(request, lambda check: next(steps))  # what is wrong is said before the stream begins
        return events(streamed(first, steps, gone))

    async def tokenize(self, request: Request) -> Response:
        """POST api/tokenize"""
        asked = await body(request)
        return answer(await to_thread.run_sync(self.tokenizers.compare, asked))

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
        since, most = whole(request, "since", 0, 0, 1 << 50), whole(request, "most", 2000, 2, 20_000)
        name = request.path_params["name"]
        return answer(await to_thread.run_sync(self.trainings.series, name, since, most))

    async def samples(self, request: Request) -> Response:
        """GET api/train/{name}/samples"""
        return answer(await to_thread.run_sync(self.trainings.samples, request.path_params["name"]))

    async def probe(self, request: Request) -> Response:
        """GET api/train/{name}/probe"""
        name, query = request.path_params["name"], request.query_params
        text = query.get("text", "")
        need(len(text) <= 2000, "A probe has 2,000 characters at most.")
        return answer(await work(request, lambda check: self.trainings.probe(self.runs, name, text, check)))

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
            Route(run, self.again),
            Route(f"{run}/t", self.values),
            Route(f"{run}/thumbs", self.thumbs),
            Route(f"{run}/logits", self.logits),
            Route(f"{run}/cell", self.cell),
            Route(f"{run}/lens", self.lens, methods=post),
            Route(f"{run}/attribution", self.attribution),
            Route(f"{run}/experts", self.experts),
            Route("/api/generate", self.generate, methods=post),
            Route("/api/tokenize", self.tokenize, methods=post),
            Route("/api/tokenizers", self.list_tokenizers),
            Route("/api/vocab/{name:path}", self.vocabulary),
            Route("/api/train", self.train),
            Route(f"{train}/series", self.series),
            Route(f"{train}/samples", self.samples),
            Route(f"{train}/probe", self.probe),
            Route("/api/events", self.events),
            Route("/{name}", self.file),
        ]


def application(page: Page, hosts: frozenset[str] | None, token: str | None = None) -> Guard:
    """The server: the page's routes behind the guard."""
    told: dict[Any, Any] = {UserError: mistake, Gone: left, 404: unknown, 405: unknown, Exception: broken}
    return Guard(Starlette(routes=page.routes(), exception_handlers=told), hosts, token)


# ------------------------------------------------------------------------------- requests and answers


def _check(gone: threading.Event) -> None:
    if gone.is_set():
        raise Gone


async def work(request: Request, task: Callable[[Check], T]) -> T:
    """``task(check)`` in a thread; where the browser goes away, its ``check`` raises Gone at the next chance."""
    gone = threading.Event()
    doing = asyncio.ensure_future(to_thread.run_sync(task, partial(_check, gone)))
    try:
        while not (await asyncio.wait({doing}, timeout=0.1))[0]:
            if await request.is_disconnected():
                gone.set()
        return doing.result()
    finally:
        gone.set()


async def streamed(first: Any, steps: Iterator[Any], gone: threading.Event) -> AsyncIterator[bytes]:
    """Server-sent events of what a generator gives; it ends at its next token when the reader is gone."""
    try:
        yield event(*first)
        while (made := await to_thread.run_sync(next, steps, None)) is not None:
            yield event(*made)
    except UserError as error:
        yield event("error", {"error": str(error)})
    except (MemoryError, RuntimeError) as error:
        yield event("error", {"error": _sentence(error)})
    finally:
        gone.set()


def event(name: str, data: Any, id: str | None = None) -> bytes:
    """One server-sent event; one called ``token`` or ``message`` has no name."""
    named = "" if name in ("token", "message") else f"event: {name}\n"
    number = "" if id is None else f"id: {id}\n"
    return f"{number}{named}data: {dumped(data)}\n\n".encode()


def events(stream: AsyncIterator[bytes]) -> Response:
    """A stream of events."""
    sent = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, 200, sent, "text/event-stream")


async def body(request: Request) -> dict[str, Any]:
    """What was posted, a JSON object within a bound."""
    held = bytearray()
    async for piece in request.stream():
        held += piece
        if len(held) > MOST_BODY:
            raise wire.TooMuch(f"A request has {MOST_BODY >> 20} MiB at most, and this is more; shorten the text.", "")
    return files.json_object(held.decode("utf-8", "replace"), "The request", "send an object")


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer that nobody keeps."""
    return Response(dumped(value), status, {"cache-control": "no-store"}, "application/json")


def dumped(value: Any) -> str:
    """As JSON; what is not finite as null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tagged(request: Request, data: bytes, kind: str, keep: str) -> Response:
    """Bytes with the tag of their content; nothing where the browser has them."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    sent = {"etag": tag, "cache-control": keep}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, sent)
    return Response(data, 200, sent | {"content-type": kind})


def whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query. Raises UserError for another one."""
    return wire.number(request.query_params.get(name, str(default)), name, low, high)


def _token(said: str | None) -> int | str | None:
    """A token by its id, or by its text."""
    if said is None or said == "":
        return None
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else said


def unedited(run: Run, what: str) -> None:
    """Refuse what reads the model's own pass."""
    need(not run.changed, f"{what} reads the model's own pass, and this run has edits of values; ask without them.")


# ---------------------------------------------------------------------------------------- mistakes


async def mistake(request: Request, error: Exception) -> Response:
    """A user's mistake: its sentence."""
    if isinstance(error, wire.TooMuch):
        return answer({"error": str(error)} | ({"pooled": error.pooled} if error.pooled else {}), 413)
    return answer({"error": str(error)}, 404 if isinstance(error, Missing) else 400)


async def left(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(None, 499)


async def unknown(request: Request, error: Exception) -> Response:
    """No such route."""
    status = getattr(error, "status_code", 404)
    said = "There is nothing at this address." if status == 404 else "This address does not take that method."
    return answer({"error": said}, status)


async def broken(request: Request, error: Exception) -> Response:
    """A mistake of ours, or no memory."""
    return answer({"error": _sentence(error)}, 500)


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError) or "memory" in str(error):
        return "There is not enough memory for this; take a shorter text or a smaller model."
    note("".join(traceback.format_exception(error)))
    return f"The server made a mistake ({type(error).__name__}); its terminal says where."

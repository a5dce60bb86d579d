"""A trace as a live page in a notebook (extra ``live``): the page's routes, answered by the kernel,
without a port.

The widget (anywidget; ``web/src/widget.ts``) holds the page in a frame of its own and passes its
requests on as messages of the notebook; here they go through the server's routes in a thread, so
that both sides are the server's and the page's own code. A saved notebook keeps nothing of it: a
trace without ``live()`` shows itself for good.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import UserError, install_extra, need

if TYPE_CHECKING:
    from ..inspection.tracing import Trace

VIEWS = ("playground", "inside", "attention", "lens", "tokens", "experts", "compare")
MISSING = f"A live page needs anywidget, Starlette and uvicorn: {install_extra('live')}"
Message = dict[str, Any]
Tell = Callable[[Message, list[bytes]], None]


def live(trace: Trace, view: str = "playground", height: int = 640) -> Any:
    """The widget that a notebook shows: the page on this trace's text and model, ``height`` in
    pixels.

    Raises UserError without the extra ``live``, for an unknown view, and for a trace whose values
    were edited.
    """
    need(view in VIEWS, f'There is no screen "{view}"; there are: {", ".join(VIEWS)}.')
    need(100 <= height <= 4000, f"{height} pixels are no height of a page; give 100 to 4,000.")
    said = (
        "the live page reads its text without them; trace it without edits and make them on "
        "the page"
    )
    need(not trace.edits, f"This trace's values were edited, and {said}.")
    try:
        import anywidget
        import traitlets

        from .app import Page, routed
    except ImportError:
        raise UserError(MISSING) from None
    from ..checkpoints.checkpoint import Checkpoint
    from ..inspection import export
    from .models import HeldEntry, Models

    parts = {
        "_esm": export.built("widget.js"),
        "page": traitlets.Unicode().tag(sync=True),
        "height": traitlets.Int().tag(sync=True),
    }
    config, ids, reads = trace.model.config, trace.tokens[0].tolist(), trace.tokenizer
    name = type(config).__name__
    entry = HeldEntry(name, Checkpoint(name, None, config), trace.model, reads)
    text = "" if reads is None else reads.decode(ids)
    source = (
        None
        if reads is None or trace.source is None
        else reads.for_source.decode(trace.source[0].tolist())
    )
    page = Page(Models.of([entry]))
    page.runs.keep(entry, trace, text, source)
    start = {"model": name, "text": text, "source": source or "", "ids": ids, "view": view}
    widget = type("LivePage", (anywidget.AnyWidget,), parts)(page=export.live(start), height=height)
    answering = Answering(routed(page), lambda told, data: widget.send(told, data))
    widget.on_msg(lambda _, message, __: answering.hear(message))
    return widget


class Answering:
    """Requests as messages {to, id, method, path, body} or {to, id, cancel}; answers {to, id,
    status?, more}, bytes.

    ``app`` is an ASGI application; it runs in a thread with an event loop of its own, as long as
    the process lives.
    """

    def __init__(self, app: Any, tell: Tell) -> None:
        self.app, self.tell = app, tell
        self.loop = asyncio.new_event_loop()
        # of what is being answered: set when nobody waits
        self.left: dict[tuple[str, int], asyncio.Event] = {}
        self.doing: set[asyncio.Task[None]] = set()  # or they could be collected
        threading.Thread(target=self.loop.run_forever, daemon=True, name="glassformer live").start()

    def hear(self, message: Message) -> None:
        """Begin to answer, or cease to."""
        self.loop.call_soon_threadsafe(self._hear, message)

    def _hear(self, message: Message) -> None:
        whose = str(message.get("to")), int(message.get("id", 0))
        if message.get("cancel"):
            if whose in self.left:
                self.left[whose].set()
            return
        self.left[whose] = asyncio.Event()
        task = self.loop.create_task(self._answer(whose, message))
        self.doing.add(task)
        task.add_done_callback(self.doing.discard)

    async def _answer(self, whose: tuple[str, int], message: Message) -> None:
        left, body = self.left[whose], [str(message.get("body", "")).encode()]

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(told: MutableMapping[str, Any]) -> None:
            if left.is_set():
                return
            back: Message = {"to": whose[0], "id": whose[1], "more": True}
            if told["type"] == "http.response.start":
                self.tell({**back, "status": told["status"]}, [])
            else:
                self.tell(
                    {**back, "more": bool(told.get("more_body"))}, [bytes(told.get("body", b""))]
                )

        try:
            await self.app(
                _scope(str(message.get("method", "GET")), str(message.get("path", ""))),
                receive,
                send,
            )
        finally:
            del self.left[whose]


def _scope(method: str, path: str) -> dict[str, Any]:
    """A request as ASGI says it, of a path such as ``api/models`` relative to the page."""
    place, _, query = path.lstrip("/").partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": f"/{unquote(place)}",
        "raw_path": f"/{place}".encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": None,
        "server": ("127.0.0.1", 80),
    }

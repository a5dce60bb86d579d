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

from ...core.errors import UserError, install_extra, need
from ...core.files import JsonObject

if TYPE_CHECKING:
    from ...sight.recording.trace import Trace

VIEWS = ("playground", "inside", "attention", "lens", "circuit", "tokens", "experts", "compare")
MISSING = f"A live page needs anywidget, Starlette and uvicorn: {install_extra('live')}"
Message = dict[str, Any]
SendMessage = Callable[[Message, list[bytes]], None]


def live(trace: Trace, view: str = "playground", height: int = 640) -> Any:
    """Notebook widget with the page on this trace's text and model, ``height`` pixels tall.

    Raises UserError without the extra ``live``, for an unknown view, and for an edited trace.
    """
    need(view in VIEWS, f'There is no screen "{view}"; there are: {", ".join(VIEWS)}.')
    need(100 <= height <= 4000, f"{height} pixels are no height of a page; give 100 to 4,000.")
    hint = (
        "the live page reads its text without them; trace it without edits and make them on "
        "the page"
    )
    need(not trace.edits, f"This trace's values were edited, and {hint}.")
    try:
        import anywidget
        import traitlets

        from .routes import Page, starlette_app
    except ImportError:
        raise UserError(MISSING) from None
    from ...formats.checkpoint import Checkpoint
    from ...sight import export
    from .models import InMemoryEntry, Models

    traits = {
        "_esm": export.built("widget.js"),
        "page": traitlets.Unicode().tag(sync=True),
        "height": traitlets.Int().tag(sync=True),
    }
    config = trace.model.config
    ids = trace.tokens[0].tolist()
    tokenizer = trace.tokenizer
    name = type(config).__name__
    entry = InMemoryEntry(name, Checkpoint(name, None, config), trace.model, tokenizer)
    text = "" if tokenizer is None else tokenizer.decode(ids)
    source = (
        None
        if tokenizer is None or trace.source is None
        else tokenizer.for_source.decode(trace.source[0].tolist())
    )
    page = Page(Models([entry]))
    page.runs.add_trace(entry, trace, text, source)
    initial_state = {"model": name, "text": text, "source": source or "", "ids": ids, "view": view}
    widget = type("LivePage", (anywidget.AnyWidget,), traits)(
        page=export.live(initial_state), height=height
    )
    bridge = WidgetBridge(starlette_app(page), lambda message, data: widget.send(message, data))
    widget.on_msg(lambda _, message, __: bridge.receive(message))
    return widget


class WidgetBridge:
    """Bridges widget messages to an ASGI application.

    Requests are {to, id, method, path, body} or {to, id, cancel}; responses {to, id, status?, more}
    with bytes. The application runs on an event loop of its own, in a daemon thread.
    """

    def __init__(self, app: Any, send_message: SendMessage) -> None:
        self.app = app
        self.send_message = send_message
        self.loop = asyncio.new_event_loop()
        # of what is being answered: set when nobody waits
        self.disconnects: dict[tuple[str, int], asyncio.Event] = {}
        self.tasks: set[asyncio.Task[None]] = set()  # or they could be collected
        threading.Thread(target=self.loop.run_forever, daemon=True, name="glassformer live").start()

    def receive(self, message: Message) -> None:
        """Handles or cancels a request."""
        self.loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Message) -> None:
        key = str(message.get("to")), int(message.get("id", 0))
        if message.get("cancel"):
            if key in self.disconnects:
                self.disconnects[key].set()
            return
        self.disconnects[key] = asyncio.Event()
        task = self.loop.create_task(self._answer(key, message))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, key: tuple[str, int], message: Message) -> None:
        disconnect = self.disconnects[key]
        body = [str(message.get("body", "")).encode()]

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await disconnect.wait()
            return {"type": "http.disconnect"}

        async def send(event: MutableMapping[str, Any]) -> None:
            if disconnect.is_set():
                return
            reply: Message = {"to": key[0], "id": key[1], "more": True}
            if event["type"] == "http.response.start":
                self.send_message({**reply, "status": event["status"]}, [])
            else:
                self.send_message(
                    {**reply, "more": bool(event.get("more_body"))}, [bytes(event.get("body", b""))]
                )

        try:
            await self.app(
                _scope(str(message.get("method", "GET")), str(message.get("path", ""))),
                receive,
                send,
            )
        finally:
            del self.disconnects[key]


def _scope(method: str, path: str) -> JsonObject:
    """ASGI scope of a request to a path relative to the page, such as ``api/models``."""
    place, _, query = path.lstrip("/").partition("?")
    return {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": f"/{unquote(place)}",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "server": ("127.0.0.1", 80),
    }

"""``glassformer page``: the page in a browser, served from this machine."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from ..errors import UserError, install_extra, need, note
from .common import add_device_options

EXAMPLES = (
    "glassformer page",
    "glassformer page out/mine gpt2 --port 9000",
    "glassformer page --run out/mine",
)
PORT = 8642
BROWSER_WAIT = 1.5  # seconds that a model waits for a browser to have the page
EXTRA = f"The page needs Starlette and uvicorn: {install_extra('page')}"


def options(parser: argparse.ArgumentParser) -> None:
    help = "folders, hub names or recipes; none opens a small model that comes with the package"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=help)
    parser.add_argument(
        "--run",
        dest="watched",
        type=Path,
        metavar="DIR",
        help="a run folder to watch, or a folder of them",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="N",
        help=f"the port ({PORT}; 0 takes any free one)",
    )
    help = (
        "the address to listen on (127.0.0.1, this machine alone; elsewhere the link holds a "
        "secret)"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help=help)
    add_device_options(parser)


def run(args: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    need(0 <= args.port < 65_536, f"--port is {args.port}; give a number from 0 to 65535.")
    if args.watched is not None and args.watched.exists() and not args.watched.is_dir():
        raise UserError(f"--run {args.watched} is a file; give a run folder, or a folder of them.")
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise UserError(EXTRA) from None
    from ..asgi import listening, security
    from ..page.app import Page, application
    from ..page.events import Trainings
    from ..page.models import Models

    models = Models(args.models, args.dtype, args.device)
    page = Page(models, Trainings(args.watched, models))
    bound = listening.listening_socket(args.host, args.port, PORT)
    port = bound.getsockname()[1]
    token = None if security.is_loopback(args.host) else security.new_token()
    names = (
        frozenset({*security.LOOPBACK, args.host.lower(), f"[{args.host.lower()}]"})
        if token is None
        else None
    )
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(args.host, args.host)
    host = f"[{host}]" if ":" in host else host
    print(f"http://{host}:{port}/" + (f"?token={token}" if token else ""), flush=True)
    note("The page is at this link; Ctrl-C ends it.")
    if token is not None:
        note("Whoever has the link can use the models here; what is sent is not encrypted.")
    threading.Thread(target=_preload_model, args=(models, page.example_loaded), daemon=True).start()
    options: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "timeout_graceful_shutdown": 1,
        "lifespan": "off",
    }
    server = uvicorn.Server(uvicorn.Config(application(page, names, token), **options))
    server.run(sockets=[bound])


def _preload_model(models: Any, page_shown: threading.Event) -> None:
    """Load the first model before anybody asks; what is wrong with it is said to who asks.

    Importing torch keeps the interpreter for seconds: a browser that comes at once has its page
    first (``shown``), and one that comes meanwhile waits a tenth as long for its turn as Python
    would let it.
    """
    page_shown.wait(BROWSER_WAIT)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        with contextlib.suppress(UserError):
            next(iter(models.entries.values())).open()
    finally:
        sys.setswitchinterval(usual)

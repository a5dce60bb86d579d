"""``glassformer serve``: models behind the paths of OpenAI's API."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import UserError, install_extra, need, note
from .common import MODEL_HELP, add_device_options, engine_device

if TYPE_CHECKING:
    from ..serve.registry import Registry

EXAMPLES = (
    "glassformer serve out/mine",
    "glassformer serve out/mine --bits 8 --port 9000",
    "glassformer serve out/mine gpt2 --host 0.0.0.0 --api-key-file keys.txt",
)
PORT = 8000
EXTRA = f"The server needs FastAPI and others: {install_extra('serve')}"


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help=MODEL_HELP)
    add(
        "--host",
        default="127.0.0.1",
        metavar="H",
        help="the address to listen on (127.0.0.1, this machine alone)",
    )
    add(
        "--name",
        action="append",
        default=[],
        metavar="N",
        help="what clients call a model (its folder's name); once for each, in their order",
    )
    add(
        "--port",
        type=int,
        default=PORT,
        metavar="N",
        help=f"the port ({PORT}; 0 takes any free one)",
    )
    add(
        "--bits",
        type=int,
        choices=[4, 8],
        metavar="B",
        help="quantise the weights while loading: 8 or 4 bits",
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="F",
        help="a file with the keys that let a client in, one a line",
    )
    add(
        "--no-api-key",
        action="store_true",
        help="let everybody in who reaches a --host that is not this machine alone",
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name by which clients without a key may call this server, as in a Host "
        "header; repeat it",
    )
    add(
        "--proxy",
        action="append",
        default=[],
        metavar="IP",
        help="the address of a proxy whose X-Forwarded-For is believed (none); repeat it",
    )
    add("--chat-template", type=Path, metavar="F", help="a Jinja file, in place of the model's own")
    add(
        "--max-context",
        type=int,
        metavar="N",
        help="tokens of a prompt and its continuation (the model's)",
    )
    add(
        "--max-sequences",
        type=int,
        default=32,
        metavar="N",
        help="continuations that are computed at once (32)",
    )
    add(
        "--max-queue",
        type=int,
        default=256,
        metavar="N",
        help="requests that may wait; more are told 429 (256)",
    )
    add(
        "--memory", type=float, metavar="GIB", help="GiB for keys and values (half of what is free)"
    )
    add(
        "--page",
        action="store_true",
        help="the page in a browser too, over the same weights, on this machine alone",
    )
    add(
        "--drain",
        type=int,
        default=30,
        metavar="S",
        help="seconds to end what is under way at SIGTERM (30)",
    )
    add_device_options(parser, "cpu")


def run(args: argparse.Namespace) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    need(0 <= args.port < 65_536, f"--port is {args.port}; give a number from 0 to 65535.")
    need(args.drain >= 1, f"--drain is {args.drain}; give 1 second or more.")
    need(args.memory is None or args.memory > 0, f"--memory is {args.memory}; give GiB above 0.")
    try:
        import fastapi  # noqa: F401
        import llguidance  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UserError(EXTRA) from None
    from ..asgi import listening, security

    near = security.is_loopback(args.host)
    message = (
        f"--host {args.host} is reached by others; give --api-key-file F, or --no-api-key to "
        "let everybody in."
    )
    need(near or args.api_key_file is not None or args.no_api_key, message)
    for address in args.proxy:
        need(
            security.is_address(address),
            f"--proxy {address} is no IP address; give one, such as 127.0.0.1.",
        )
    # before torch and the models, which take seconds
    bound = listening.listening_socket(args.host, args.port, PORT)
    template = args.chat_template
    need(
        template is None or template.is_file(),
        f"--chat-template {template}: there is no such file; check the path.",
    )
    device = engine_device(args)
    from ..serve import server
    from ..serve.registry import EngineLimits, open_models

    keys = None if args.api_key_file is None else server.keys_of(args.api_key_file)
    memory = None if args.memory is None else int(args.memory * (1 << 30))
    bounds = EngineLimits(args.max_context, args.max_sequences, args.max_queue, memory)
    models = open_models(
        args.models,
        bounds,
        dtype=args.dtype,
        device=device,
        bits=args.bits,
        template=args.chat_template,
        ids=args.name,
    )
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"http://{host}:{bound.getsockname()[1]}/v1", flush=True)
    for id, served in models.models.items():
        note(f"{id}: {served.engine.room}")
    if args.page:
        note(f"The page is at {_page_url(models, keys)}")
    note(f"Serving {', '.join(models.models)}; Ctrl-C or SIGTERM ends it.")
    server.run(models, __version__, bound, args.host, keys, args.drain, args.allow_host, args.proxy)


def _page_url(models: Registry, keys: Sequence[str] | None) -> str:
    """The page over the models that are served, in a thread; its address.

    Where the API needs a key, so does the page: the browser asks for it as a password.
    """
    import uvicorn

    from ..asgi import listening, security
    from ..page.app import Page, application
    from ..page.events import Trainings
    from ..page.models import InMemoryEntry, Models

    served = models.models.items()
    served_models = Models.of(
        [
            InMemoryEntry(id.replace("/", "-"), model.checkpoint, model.model, model.tokenizer)
            for id, model in served
        ]
    )
    bound = listening.listening_socket(security.LOOPBACK[0], 0, PORT)
    app: Any = application(
        Page(served_models, Trainings(None, served_models)), frozenset(security.LOOPBACK)
    )
    if keys is not None:
        app = security.PasswordGuard(app, keys)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    )
    threading.Thread(
        target=server.run, args=([bound],), name="glassformer-page", daemon=True
    ).start()
    return f"http://{security.LOOPBACK[0]}:{bound.getsockname()[1]}/"

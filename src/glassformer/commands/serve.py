"""``glassformer serve``: models behind the paths of OpenAI's API."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .. import __version__
from ..core.errors import UserError, install_extra, need, note
from .options import DeviceOptions
from .parsing import Count, Words

if TYPE_CHECKING:
    from ..serve.served_models import Registry

EXAMPLES = (
    "glassformer serve tiny-stories",
    "glassformer serve out/mine --bits 8 --port 9000",
    "glassformer serve out/mine --adapter poems=out/poems",
    "glassformer serve out/mine gpt2 --host 0.0.0.0 --api-key-file keys.txt",
)
PORT = 8000
EXTRA = f"The server needs Starlette, pydantic and others: {install_extra('serve')}"


def run(
    models: Words,
    options: DeviceOptions,
    *,
    host: str = "127.0.0.1",
    name: Words = (),
    adapter: Words = (),
    port: int = PORT,
    bits: Literal[4, 8] | None = None,
    api_key_file: Path | None = None,
    no_api_key: bool = False,
    allow_host: Words = (),
    proxy: Words = (),
    chat_template: Path | None = None,
    direction: Words = (),
    max_context: int | None = None,
    max_sequences: int = 32,
    max_queue: int = 256,
    memory: float | None = None,
    page: bool = False,
    drain: Count = 30,
) -> None:
    """Serves models until SIGTERM or Ctrl-C.

    models MODEL: a folder, a hub name or a recipe such as glass/1m
    device D: cpu, cuda, cuda:1 or mps (cpu)
    host H: the address to listen on (127.0.0.1, this machine only)
    name N: the model's name for clients (its folder's name); repeat it for each model, in order
    adapter NAME=FOLDER: also serve the first model with this adapter (LoRA of ours or PEFT's), as
        MODEL:NAME; may be repeated
    port N: the port (8000; 0 takes any free one)
    bits B: quantize the weights while loading: 8 or 4 bits
    api_key_file F: a file with the accepted API keys, one a line
    no_api_key: require no key on a --host that other machines reach
    allow_host NAME: accept this Host header from clients without a key; may be repeated
    proxy IP: trust X-Forwarded-For from this proxy (none); may be repeated
    chat_template F: a Jinja file in place of the model's chat template
    direction NAME=FILE: a probe's file, by the name that requests add its direction by; may be
        repeated
    max_context N: at most N tokens of a prompt and its continuation (the model's context)
    max_sequences N: continuations in a batch
    max_queue N: waiting requests; further ones get status 429 (256)
    memory GIB: GiB for keys and values (half of the free memory)
    page: also serve the page of the same weights, on this machine only
    drain S: seconds for running requests to finish after SIGTERM
    """
    need(0 <= port < 65_536, f"--port is {port}; give a number from 0 to 65535.")
    need(memory is None or memory > 0, f"--memory is {memory}; give GiB above 0.")
    try:
        import llguidance  # noqa: F401
        import prometheus_client  # noqa: F401
        import pydantic  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UserError(EXTRA) from None
    from ..serve.asgi import listening, security

    near = security.is_loopback(host)
    need(
        near or api_key_file is not None or no_api_key,
        f"Other machines can reach --host {host}; give --api-key-file F, or --no-api-key to "
        "accept everyone.",
    )
    for address in proxy:
        need(
            security.is_address(address),
            f"--proxy {address} is no IP address; give one, such as 127.0.0.1.",
        )
    # before torch and the models, which take seconds
    bound = listening.listening_socket(host, port, PORT)
    need(
        chat_template is None or chat_template.is_file(),
        f"--chat-template {chat_template}: there is no such file; check the path.",
    )
    device = options.for_engine()
    from ..serve import server
    from ..serve.loading import open_models
    from ..serve.served_models import EngineLimits

    keys = None if api_key_file is None else server.keys_of(api_key_file)
    memory_bytes = None if memory is None else int(memory * (1 << 30))
    bounds = EngineLimits(max_context, max_sequences, max_queue, memory_bytes)
    registry = open_models(
        models,
        bounds,
        dtype=options.dtype,
        device=device,
        bits=bits,
        template=chat_template,
        ids=name,
        directions=direction,
        adapters=adapter,
    )
    address = f"[{host}]" if ":" in host else host
    print(f"http://{address}:{bound.getsockname()[1]}/v1", flush=True)
    for id, served in registry.entries.items():
        note(f"{id}: {served.engine.memory_plan}")
    if page:
        note(f"The page is at {_page_url(registry, keys)}")
    note(f"Serving {', '.join(registry.entries)}; Ctrl-C or SIGTERM ends it.")
    server.run(registry, __version__, bound, host, keys, drain, allow_host, proxy)


def _page_url(models: Registry, keys: Sequence[str] | None) -> str:
    """The page over the models that are served, in a thread; its address.

    Where the API needs a key, so does the page: the browser asks for it as a password.
    """
    import uvicorn

    from ..serve.asgi import listening, security
    from ..serve.page.routes import Page, starlette_app

    bound = listening.listening_socket(security.LOOPBACK[0], 0, PORT)
    app = security.Guard(starlette_app(Page(models)), frozenset(security.LOOPBACK), passwords=keys)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", ws="none", access_log=False, lifespan="off")
    )
    threading.Thread(
        target=server.run, args=([bound],), name="glassformer-page", daemon=True
    ).start()
    return f"http://{security.LOOPBACK[0]}:{bound.getsockname()[1]}/"

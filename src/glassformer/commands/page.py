"""``glassformer page``: the page in a browser, served from this machine."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from ..core.errors import UserError, install_extra, need, note
from .options import DeviceOptions
from .parsing import Words

EXAMPLES = (
    "glassformer page",
    "glassformer page tiny-stories tiny-translator --port 9000",
    "glassformer page --run out/mine",
    "glassformer page --from-transformers ~/models/SmolLM2-135M",
    "glassformer page --model-file model.py:make",
)
PORT = 8642
BROWSER_WAIT = 1.5  # seconds that a model waits for a browser to have the page
OPTION = "--from-transformers"
EXTRA = f"The page needs Starlette and uvicorn: {install_extra('page')}"


def run(
    options: DeviceOptions,
    models: Words = (),
    *,
    from_transformers: Words = (),
    model_file: Words = (),
    run_: Path | None = None,
    port: int = PORT,
    host: str = "127.0.0.1",
) -> None:
    """Serves the page until Ctrl-C.

    models MODEL: folders, hub names or recipes; none opens the models that come with the
        package
    from_transformers FOLDER: a folder to load with the library transformers, with its tokenizer;
        may be repeated
    model_file FILE.py:FUNCTION: your own model, any torch.nn.Module that the function returns; its
        text is token ids, "5 3 8"; may be repeated (docs/sight.md)
    run_ DIR: a run folder to watch, or a folder of run folders
    port N: the port (8642; 0 takes any free one)
    host H: the address to listen on (127.0.0.1, this machine only; for others the link contains a
        secret)
    """
    need(0 <= port < 65_536, f"--port is {port}; give a number from 0 to 65535.")
    if run_ is not None and run_.exists() and not run_.is_dir():
        raise UserError(f"--run {run_} is a file; give a run folder, or a folder of them.")
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise UserError(EXTRA) from None
    from ..serve.asgi import listening, security
    from ..serve.page.events import Trainings
    from ..serve.page.models import Models, RecordedEntry
    from ..serve.page.routes import Page, application

    recorded = []
    if from_transformers or model_file:
        from ..sight.recording import outside

        opened = [(name, outside.from_transformers(name, OPTION)) for name in from_transformers]
        opened += [(name, outside.from_file(name)) for name in model_file]
        recorded = [RecordedEntry(name, model) for name, model in opened]
    entries = Models([*models, *recorded], options.dtype, options.device)
    page = Page(entries, Trainings(run_, entries))
    bound = listening.listening_socket(host, port, PORT)
    port = bound.getsockname()[1]
    token = None if security.is_loopback(host) else security.new_token()
    names = (
        frozenset({*security.LOOPBACK, host.lower(), f"[{host.lower()}]"})
        if token is None
        else None
    )
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    print(f"http://{name}:{port}/" + (f"?token={token}" if token else ""), flush=True)
    note("The page is at this link; Ctrl-C ends it.")
    if token is not None:
        note("Anyone with the link can use the models here; traffic is not encrypted.")
    threading.Thread(
        target=_preload_model, args=(entries, page.example_loaded), daemon=True
    ).start()
    config = uvicorn.Config(
        application(page, names, token),
        log_level="critical",
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[bound])


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

"""A page served on this machine, and a tab of Debian's Chromium to look at it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from glassformer import config as c

LINKS: list[str] = []  # of the pages that the tests serve: a tab may ask these alone


@dataclass(frozen=True)
class Site:
    """Address of the page, and the folders of its models by name."""

    url: str
    folders: dict[str, Path]


def odd() -> c.Decoder:
    """Sizes that are no power of two: 48 wide, 3 heads."""
    body = c.Stack(
        2,
        (tiny.block(c.Attention(3), c.MLP(72)),),
        c.Learned(tiny.CONTEXT),
        last_norm=c.LayerNorm(),
    )
    return c.Decoder(48, tiny.CONTEXT, c.Embed(tiny.VOCAB), body, c.Head(), tiny.WIDE)


FAMILIES: dict[str, c.Model] = {
    "gpt": tiny.ALL["gpt2"],
    "llama": tiny.ALL["llama"],
    "mixture": tiny.ALL["mixtral"],
    "bert": tiny.ALL["bert"],
    "t5": tiny.ALL["t5"],
    "odd": odd(),
}


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    import served
    from glassformer.core.nn import build_model
    from glassformer.core.tokenizer import train
    from glassformer.formats import store

    folder = tmp_path_factory.mktemp("families")
    letters = train("char", [served.TEXT + "ABCDEFGHIJKLMNOPQRSTUVWXYZ'"], None)
    folders = {}
    for name, cfg in FAMILIES.items():
        kind = "wordpiece" if isinstance(cfg, c.Encoder) else "bpe"
        tokenizer = letters if name == "odd" else served.tokenizer(kind)
        model = build_model(replace(cfg, embed=replace(cfg.embed, vocab=tokenizer.size)), seed=1)
        store.save(model, folder / name, tokenizer)
        folders[name] = folder / name
    with served_at(*folders.values()) as url:
        yield Site(url, folders)


@pytest.fixture(scope="session")
def serving():
    """serving(FOLDER, ..., run=FOLDER) as a context: a page over those models and that training,
    and its link."""
    return served_at


@contextmanager
def served_at(*folders: Path, run: Path | None = None) -> Iterator[str]:
    """A page over models, and a training's folder, on a port of its own, and its link."""
    import uvicorn

    import served
    from glassformer.serve.asgi.security import LOOPBACK
    from glassformer.serve.page.routes import application

    listening = socket.create_server(("127.0.0.1", 0))
    individual = application(served.page(*folders, run=run), frozenset(LOOPBACK))
    server = uvicorn.Server(
        uvicorn.Config(individual, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    LINKS.append(f"http://127.0.0.1:{listening.getsockname()[1]}/")
    yield LINKS[-1]
    server.should_exit = True
    thread.join(5)


@pytest.fixture(scope="session")
def window(chromium):
    """One window for all tabs: what the first has fetched the next has at hand, as with a
    reader."""
    context = chromium.new_context(viewport={"width": 1366, "height": 900}, color_scheme="light")
    yield context
    context.close()


@pytest.fixture
def new_tab(window):
    """A tab that may ask this machine alone and must leave the console empty."""
    with looking(window) as page:
        yield page


@pytest.fixture
def tab(new_tab, site):
    """The same beside the page of all families."""
    return new_tab


@pytest.fixture(scope="module")
def screen(request, window, site):
    """Such a tab for all tests of a module that have the same parameter, one after the other."""
    with looking(window) as page:
        page.name = request.param
        yield page


@contextmanager
def looking(window: Any) -> Iterator[Any]:
    """A tab, closed at the end, that has asked no one else and whose console stayed empty."""
    page, foreign, errors = window.new_page(), [], []

    def record_request(request: Any) -> None:
        if not request.url.startswith((*LINKS, "file:", "data:", "blob:")):
            foreign.append(request.url)

    page.on("request", record_request)
    page.on(
        "console",
        lambda message: (
            errors.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(60_000)  # of a machine with much else to do
    yield page
    page.evaluate(
        "() => { try { localStorage.clear() } catch { /* of a page that may have none */ } }"
    )
    page.close()
    window.clear_permissions()
    assert not foreign and not errors, (foreign, errors)

"""A page served on this machine and Debian's Chromium to look at it; what is missing is skipped by name."""

from __future__ import annotations

import shutil
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

sync = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'glassformer[page-test]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'glassformer[page]'")
CHROMIUM = "/usr/bin/chromium"
LINKS: list[str] = []  # of the pages that the tests serve: a tab may ask these alone
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none"]


@dataclass(frozen=True)
class Site:
    """Where the page is, and the folders of its models by name."""

    url: str
    folders: dict[str, Path]


def odd() -> c.Decoder:
    """Sizes that are no power of two: 48 wide, 3 heads."""
    body = c.Stack(2, (tiny.block(c.Attention(3), c.MLP(72)),), c.Learned(tiny.CONTEXT), last_norm=c.LayerNorm())
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
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    import served
    from glassformer.checkpoints import store
    from glassformer.nn import build_model
    from glassformer.tokenizer import trainers

    folder = tmp_path_factory.mktemp("families")
    letters = trainers.train("char", [served.TEXT + "ABCDEFGHIJKLMNOPQRSTUVWXYZ'"], None)
    folders = {}
    for name, cfg in FAMILIES.items():
        kind = "wordpiece" if isinstance(cfg, c.Encoder) else "bpe"
        tokenizer = letters if name == "odd" else served.tokenizer(kind)
        model = build_model(replace(cfg, embed=replace(cfg.embed, vocab=tokenizer.size)), seed=1)  # type: ignore[arg-type]
        store.save(model, folder / name, tokenizer)
        folders[name] = folder / name
    with served_at(*folders.values()) as url:
        yield Site(url, folders)


@pytest.fixture(scope="session")
def serving() -> Any:
    """serving(FOLDER, ...) as a context: a page over those models, and its link."""
    return served_at


@contextmanager
def served_at(*folders: Path) -> Iterator[str]:
    """A page over models on a port of its own, and its link."""
    import uvicorn

    import served
    from glassformer.asgi.security import LOOPBACK
    from glassformer.page.app import application

    listening = socket.create_server(("127.0.0.1", 0))
    own = application(served.page(*folders), frozenset(LOOPBACK))
    server = uvicorn.Server(uvicorn.Config(own, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    LINKS.append(f"http://127.0.0.1:{listening.getsockname()[1]}/")
    yield LINKS[-1]
    server.should_exit = True
    thread.join(5)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if not shutil.which(CHROMIUM):
        pytest.skip("needs Chromium: apt-get install chromium fonts-dejavu")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any, site: Site) -> Iterator[Any]:
    """A tab that may ask this machine alone and must leave the console empty."""
    context = chromium.new_context(viewport={"width": 1366, "height": 900}, color_scheme="light")
    page, foreign, errors = context.new_page(), [], []

    def only_here(route: Any) -> None:
        if route.request.url.startswith((*LINKS, "data:", "blob:")):
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    page.route("**/*", only_here)
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(15_000)
    yield page
    context.close()
    assert not foreign and not errors, (foreign, errors)

"""What every test may ask for."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from pathlib import Path

import pytest
import torch

from seeding import RUN, seed_all, seed_from

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def pytest_collection_finish():
    """What the collection made lives to the end: no collection of garbage walks through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def find_shared_data():
    """The folder of real data, where it is there: ``GLASSFORMER_DATA``, else ``../shared/data``."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    for folder in (os.environ.get("GLASSFORMER_DATA"), beside):
        if folder and (Path(folder) / "tinyshakespeare").is_dir():
            return Path(folder)
    return None


@pytest.fixture(scope="session")
def shared_data():
    """Real tokenizers, weights and corpora; the test skips where they are missing."""
    folder = find_shared_data()
    if folder is None:
        pytest.skip("needs the shared data folder: set GLASSFORMER_DATA to it")
    return folder


@pytest.fixture
def terminal(capsys):
    """The command line (terminal.py)."""
    from terminal import Terminal

    return Terminal(capsys)


@pytest.fixture(scope="session")
def checker():
    """A process that checks learners' files; it takes seconds to start."""
    from glassformer.learn.checking import Checker

    with Checker() as started:
        yield started


@pytest.fixture
def chosen(monkeypatch):
    """The names of the attention engines that ran, in order."""
    from glassformer.core.nn import attention

    names = []
    choose = attention.choose

    def recorded(*args):
        engine = choose(*args)
        names.append(engine.name)
        return engine

    monkeypatch.setattr(attention, "choose", recorded)
    return names


@pytest.fixture
def asked_nothing(monkeypatch):
    """While entered, whatever asks a device for a number fails: tensors of "meta" have none. So
    does a number that is made there of Python's, which is a copy that is waited for.

    On a GPU it would wait for all that was asked before, and the GPU then for the host.
    """
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    # kept for good once it is made: not with what stands in for torch.tensor here
    get_torch_obj_rule_map()
    tensor = torch.tensor

    def on_the_host(*args, device="cpu", **named):
        assert device is None or torch.device(device).type == "cpu", (
            "torch.tensor on a GPU waits for it"
        )
        return tensor(*args, **named)

    @contextlib.contextmanager
    def entered():
        with monkeypatch.context() as patched:  # autocast does not know this device
            patched.setattr(torch, "tensor", on_the_host)
            patched.setattr(torch, "is_autocast_enabled", lambda *args: False)
            patched.setattr(torch, "autocast", lambda *args, **named: contextlib.nullcontext())
            yield

    return entered


@pytest.fixture(scope="session")
def site_page(tmp_path_factory):
    """The folder of a site of one page with all that a page can have, built once."""
    pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[docs]'")
    from site_page import PAGE, built

    folder = tmp_path_factory.mktemp("site")
    (folder / "source").mkdir()
    (folder / "source" / "index.md").write_text(PAGE)
    done = built(folder / "source", folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="session")
def whole_site(tmp_path_factory):
    """The folder of our own site, built as `make docs` does: minutes."""
    pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[docs]'")
    from site_page import DOCS, built

    folder = tmp_path_factory.mktemp("whole")
    done = built(DOCS, folder, "auto")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "site"


FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host is ever reached
]


@pytest.fixture(scope="session")
def chromium():
    """Debian's Chromium, one for all tests that look with it; they are skipped by name where it is
    missing."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium fonts-dejavu")
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install -e '.[page-test]'"
    )
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Tests with a browser come last: Playwright's event loop runs until the end, and nobody else
    can start one.

    Several processes (pytest-xdist) share out files, those of a file with a browser by themselves.
    """

    def browser(item):
        return "chromium" in getattr(item, "fixturenames", ())

    items.sort(key=browser)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(
                pytest.mark.xdist_group(item.nodeid.split("::")[0] + ":browser" * browser(item))
            )


def pytest_report_header():
    return f"seed: GLASSFORMER_TEST_SEED={RUN}"


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef, request):
    """Seed a fixture that several tests share, so that its draws do not depend on which of them is
    first."""
    if fixturedef.scope != "function":
        seed_all(seed_from(f"{fixturedef.baseid}::{fixturedef.argname}"))


@pytest.fixture(autouse=True)
def _seeded(request):
    """Seed every test by its name. pytest-xdist changes `nodeid`, so the name is composed here."""
    seed_all(seed_from(f"{request.node.parent.nodeid}::{request.node.name}"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Tests never read or fill the user's own cache."""
    os.environ["GLASSFORMER_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def pytest_terminal_summary(terminalreporter):
    """The line budget: how many lines each room of the house holds."""
    source = Path(__file__).parents[1] / "src" / "glassformer"
    rooms = {}
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0]
        rooms[room] = rooms.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    counted = ", ".join(
        f"{room} {lines}" for room, lines in sorted(rooms.items(), key=lambda item: -item[1])
    )
    terminalreporter.write_line(f"lines: {sum(rooms.values())} = {counted}")

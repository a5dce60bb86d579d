"""One small server for the session: its own process, as `glassformer serve` starts it, over models
of every kind."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import glassformer
import served
import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.serve.page.models import shipped

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass
class Server:
    """A server under test: where it is, and what it has written."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, **more: Any) -> httpx.Client:
        """A plain HTTP client of it."""
        return httpx.Client(base_url=self.url, timeout=60, **more)

    def post(
        self, path: str, body: Any = None, headers: Any = None, **fields: Any
    ) -> httpx.Response:
        """One request of a body, or of these fields beside it."""
        body = {**(body or {}), **fields} if fields else body
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=60)

    def json(self, path: str, body: Any = None, **fields: Any) -> Any:
        """The answer to a request."""
        return self.post(path, body, **fields).json()

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60, **more)

    def send(self, path: str, content: Any, kind: str = "application/json") -> httpx.Response:
        """One request of these bytes."""
        headers = {"content-type": kind}
        return httpx.post(f"{self.url}{path}", content=content, headers=headers, timeout=60)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def connect(self) -> socket.socket:
        """A connection that nothing was sent on."""
        return socket.create_connection(self.address, 20)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.get("/metrics").text.splitlines()
        result = [
            line
            for line in lines
            if line.startswith(f"glassformer:{name}{{") or line.startswith(f"glassformer:{name} ")
        ]
        return sum(float(line.rsplit(" ", 1)[1]) for line in result)

    def idle(self, seconds: float = 30) -> bool:
        """True where the gauges come back to 0 within so many seconds."""
        until = time.monotonic() + seconds
        names = ("num_requests_running", "num_requests_waiting")
        while time.monotonic() < until:
            if not any(self.metric(name) for name in names):
                return True
            time.sleep(0.1)
        return False

    def lines(self) -> list[dict[str, Any]]:
        """The lines of its log that are JSON."""
        return [
            json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")
        ]

    def line(self, identifier: str) -> dict[str, Any]:
        """The log's line of a request: it is written once the answer went, so it may take a moment."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(json.JSONDecodeError):  # a line that is being written
                for line in self.lines():
                    if line.get("id") == identifier:
                        return line
            time.sleep(0.02)
        raise AssertionError(f"no line of request {identifier!r} in the log")


def opened(path: Path) -> tuple[Any, Any]:
    return glassformer.load(path, dtype="float32")


@contextlib.contextmanager
def started(folder: Path, words: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """`glassformer serve` with these words on a free port; killed at the end where it still
    runs."""
    log = folder / f"log-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "glassformer", "serve", "--port", "0", *shlex.split(words)]
    with log.open("w") as err:
        fields = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(env or {})}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, text=True, env=fields
        )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip().removesuffix("/v1")
        assert url.startswith("http"), log.read_text()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            time.sleep(0.05)
        else:
            pytest.fail(f"the server is not healthy after a minute: {log.read_text()[-1000:]}")
        yield Server(url, process, log)
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    """The small model that comes with the package, with a chat template."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(shipped(), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _extra():
    """Tests of the server skip where its extra is missing."""
    for name in ("starlette", "pydantic", "uvicorn", "prometheus_client", "llguidance"):
        pytest.importorskip(name, reason="the server needs its extra: pip install -e '.[serve]'")


@pytest.fixture(scope="session")
def other_models(tmp_path_factory):
    """Untrained models of the other kinds: vectors, three labels (and blanks), one value for a
    pair, labels of words, translations."""
    home = tmp_path_factory.mktemp("others")
    bert = served.worded(tiny.ALL["bert"])
    pools = {
        "vectors": c.Pool("mean"),
        "labels": c.Pool("first", "tanh", labels=3),
        "pairs": c.Pool("first", "tanh", labels=1),
    }
    for name, pool in pools.items():
        store.save(
            build_model(replace(bert, pool=pool), seed=3),
            home / name,
            served.tokenizer("wordpiece"),
        )
    named = replace(bert, pool=None, token_head=c.TokenHead(3))
    store.save(
        build_model(named, seed=3),
        home / "names",
        served.tokenizer("wordpiece"),
        labels=("O", "B-PER", "I-PER"),
    )
    served.saved("vaswani", home / "translator")
    return {name: home / name for name in (*pools, "names", "translator")}


@pytest.fixture(scope="session")
def server(chat_model, other_models, tmp_path_factory):
    """The session's server."""
    models = " ".join(map(str, (chat_model, *other_models.values())))
    with started(tmp_path_factory.mktemp("log"), f"{models} --dtype float32") as item:
        yield item


def events(response: httpx.Response) -> list[Any]:
    """The JSON of a stream's events; its form is held to what OpenAI's clients parse."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    pieces = response.text.split("\n\n")
    assert pieces[-1] == "" and pieces[-2] == "data: [DONE]", response.text[-300:]
    assert all(piece.startswith("data: ") and "\n" not in piece for piece in pieces[:-1])
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-2]]

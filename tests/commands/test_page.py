"""``glassformer page`` as a user starts it: the link, a port that is taken, what is missing, a
server that is alive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassformer.commands import page
from glassformer.commands.options import DeviceOptions
from glassformer.serve.asgi import listening
from mistakes import mistake

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
httpx = pytest.importorskip("httpx", reason="tests of the page need httpx")


@pytest.fixture(scope="module")
def link():
    """A server of its own process, as `glassformer page --port 0` starts it."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    words = [sys.executable, "-m", "glassformer", "page", "--port", "0"]
    with subprocess.Popen(words, **options, env={**os.environ, "HF_HUB_OFFLINE": "1"}) as started:
        yield started.stdout.readline().strip()
        started.send_signal(signal.SIGINT)
        assert started.wait(20) in (0, 130, -signal.SIGINT)


def test_the_link_is_answered(link):
    assert link.startswith("http://127.0.0.1:")
    assert link.endswith("/")
    assert httpx.get(link).headers["content-type"].startswith("text/html")
    response = httpx.post(
        f"{link}api/runs", json={"model": "tiny-page", "text": "O Romeo"}, timeout=60
    )
    assert response.status_code == 200
    assert response.json()["kind"] == "decoder"


def test_stop_is_closing_the_request(link):
    """A generation of thousands of tokens ends when its reader goes, and the next one is served at
    once."""
    body = {"model": "tiny-page", "text": "O", "max_new": 250, "settings": {"temperature": 0}}
    with httpx.stream("POST", f"{link}api/generate", json=body, timeout=60) as answer:
        next(line for line in answer.iter_lines() if "logprob" in line)
    start = time.monotonic()
    text = httpx.post(f"{link}api/generate", json=body | {"max_new": 2}, timeout=60).text
    last = json.loads(text.strip().rsplit("data: ", 1)[1])
    assert text.count("logprob") >= 2
    assert last["finish"] == "length"
    assert time.monotonic() - start < 20


def test_half_a_request_harms_nobody(link):
    """Bytes that are no HTTP, or break off, are dropped; other requests go on."""
    port = int(link.rsplit(":", 1)[1].strip("/"))
    for sent in (
        b"\x00\x01garbage\r\n\r\n",
        b"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    ):
        with socket.create_connection(("127.0.0.1", port)) as item:
            item.sendall(sent)
    assert httpx.get(f"{link}api/models").status_code == 200


def test_a_port_that_is_taken(terminal):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        notes = terminal.refused(f"page --port {port}").strip()
    sentence, _, free = notes.rpartition(" ")
    assert sentence.startswith(f"glassformer: Port {port} is in use; port ")
    assert "\n" not in notes
    listening.listening_socket("127.0.0.1", int(free.rstrip(".")), page.PORT).close()


@pytest.mark.parametrize(
    "options, message",
    [
        ("--port 70000", "0 to 65535"),
        ("--host 203.0.113.7 --port 0", "no address of this machine"),
        ("--run file", "is a file"),
        ("./nothing", "no folder"),
    ],
)
def test_mistakes_of_the_command_are_sentences(tmp_path, monkeypatch, terminal, options, message):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    notes = terminal.refused(f"page {options}")
    assert message in notes
    assert notes.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with mistake(r"pip install 'glassformer\[page\]'"):
        page.run(DeviceOptions(), port=0)

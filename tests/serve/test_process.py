"""Faults of connections, clients and the engine, against a server whose clocks are short and whose
engine can fail.

Of protocol, server, streaming, following and prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn

from glassformer.serve import loading
from glassformer.serve import server as serving
from glassformer.serve.app import application
from glassformer.serve.asgi.replies import WRITE_CHUNK
from glassformer.serve.served_models import EngineLimits, Registry

from .conftest import Server, events, started
from .test_bad_input import refused

TEXT = "/v1/completions"
FAULTS = str(Path(__file__).parent / "faults.py")
FAILS, NO_MEMORY, DIES, SLOW, LEAVES = 666_001, 666_002, 666_003, 666_004, 666_005
# 5 seconds or more
LONG = {"prompt": "O Romeo", "max_tokens": 240, "seed": SLOW, "ignore_eos": True}


@pytest.fixture(scope="module")
def faulty(chat_model, tmp_path_factory):
    options = f"--use {FAULTS} --dtype float32 --max-queue 8 --max-sequences 4 --drain 20"
    with started(tmp_path_factory.mktemp("faulty"), f"{chat_model} {options}") as item:
        yield item


def raw(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b"]
)
def test_c4_headers_that_do_not_come(faulty, sent):
    with faulty.connect() as item:
        item.sendall(sent)
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):  # closed with or without a reset
            assert item.recv(100) == b""
        assert 0.5 < time.monotonic() - start < 15


def test_c4_a_connection_may_wait_for_its_request(faulty):
    """As where a busy client opens forty at once; the clock of headers begins at their first byte."""
    with faulty.connect() as item:
        time.sleep(1.5)
        item.sendall(raw({"prompt": "O", "max_tokens": 1}))
        assert b" 200 " in item.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("chunked", [False, True])
def test_c4_a_body_that_is_too_large_is_answered_and_the_connection_lives(faulty, chunked):
    """What is sent after the answer is read and dropped: a reset would take the answer with it."""
    lines = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    size, piece = 12 << 20, b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    body = [piece] * 12 + [b"0\r\n\r\n"] if chunked else [b" " * size]
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    with faulty.connect() as item, item.makefile("rb") as answers:
        item.sendall(lines + length + b"\r\n\r\n")
        for data in body:
            item.sendall(data)
        item.sendall(raw({"prompt": "O", "max_tokens": 1}))
        statuses = [*answers_until_end(answers)]
    assert [status.split()[1] for status in statuses] == [b"413", b"200"]


def answers_until_end(lines: Any) -> Iterator[bytes]:
    """The status lines of a connection that ends once it is idle."""
    while status := lines.readline():
        length = 0
        while (header := lines.readline().strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                length = int(header.partition(b":")[2])
        lines.read(length)
        yield status


def test_c4_headers_that_drip(faulty):
    with faulty.connect() as item:
        start = time.monotonic()
        item.sendall(b"GET /health HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):  # closed with or without a reset
            while time.monotonic() - start < 15:
                item.sendall(b"X-A: b\r\n")
                time.sleep(0.1)
        assert time.monotonic() - start < 14, "each line would be in time, all together are not"


def test_c4_a_body_that_does_not_come(faulty):
    with faulty.connect() as item:
        item.sendall(raw(LONG)[:-5])
        assert b" 408 " in item.recv(4096).split(b"\r\n")[0]
    assert faulty.get("/load").json() == {"server_load": 0}


def test_c15_a_full_queue(faulty):
    async def ask(client):
        return await client.post(TEXT, json={**LONG, "max_tokens": 15})

    async def all_at_once():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=faulty.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(ask(client) for _ in range(40)))

    answers = asyncio.run(all_at_once())
    output = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429} and len(answers) - len(
        output
    ) >= 8
    assert all(
        item.headers["retry-after"] == "1" and item.json()["error"]["code"] == "queue_full"
        for item in output
    )
    assert faulty.idle()


def test_c15_more_than_can_ever_wait(faulty):
    assert "queue of 8" in refused(faulty.post(TEXT, prompt=["a"] * 9, max_tokens=1))
    assert "queue of 8" in refused(faulty.post(TEXT, prompt=["a"] * 3, n=3, max_tokens=1))
    assert faulty.post(TEXT, prompt=["a"] * 8, max_tokens=1).status_code == 200
    texts = [f"text {number}" for number in range(40)]
    assert len(faulty.json("/v1/embeddings", input=texts)["data"]) == 40, "vectors come in turns"


def test_c16_a_client_leaves(faulty):
    """While others compute (it waits), before the first token, in the middle of a stream, and
    without one."""
    stream = {**LONG, "stream": True}
    with faulty.client() as client, client.stream("POST", TEXT, json=stream) as going:
        lines = going.iter_lines()
        next(lines)
        for _ in range(6):
            with faulty.connect() as item:
                item.sendall(raw(stream))
        for body in (LONG, stream):
            with faulty.connect() as item:
                item.sendall(raw(body))
                time.sleep(0.4)
    start = time.monotonic()
    assert faulty.idle(), "everything is given up"
    assert time.monotonic() - start < 5
    assert faulty.metric("kv_cache_usage_perc") == 0 and faulty.get("/load").json() == {
        "server_load": 0
    }
    assert any(line["status"] == 499 for line in faulty.lines())
    assert faulty.post(TEXT, LONG, max_tokens=2).status_code == 200


def test_c16_clients_that_reset_their_streams(faulty):
    """The news of a lost connection comes between two events: nothing is written to it by the
    hundred, and the log stays JSON."""
    reset = struct.pack("ii", 1, 0)
    stream = {"prompt": "O", "n": 3, "max_tokens": 200, "ignore_eos": True, "stream": True}
    for _ in range(40):
        with faulty.connect() as item:
            item.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            item.sendall(raw(stream))
            item.recv(1)
    assert faulty.idle(60) and faulty.get("/load").json() == {"server_load": 0}
    assert "socket.send()" not in faulty.log.read_text()


@pytest.mark.parametrize(("seed", "n"), [(SLOW, 8), (1, 3)])
def test_c17_a_client_that_does_not_read(faulty, seed, n):
    """The client is dropped, others are answered meanwhile; also where all of its answer was sent
    before that."""

    # how many tokens were written to each client that left or was dropped
    def dropped():
        return [line.get("generated_tokens", 0) for line in faulty.lines() if line["status"] == 499]

    before = len(dropped())
    expected = {**LONG, "n": n, "logprobs": 20, "stream": True, "seed": seed}
    with socket.socket() as item:
        item.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        item.connect(faulty.address)
        item.sendall(raw(expected))
        time.sleep(1)
        start = time.monotonic()
        assert faulty.post(TEXT, prompt="O", max_tokens=2).status_code == 200
        assert faulty.idle(60) and time.monotonic() - start < 60
        while len(dropped()) == before and time.monotonic() - start < 60:
            time.sleep(0.05)
        item.settimeout(20)
        ids = 0
        with contextlib.suppress(ConnectionError):  # closed with or without a reset
            while piece := item.recv(1 << 20):
                ids += len(piece)
        assert ids < 1 << 20, "most of it was never sent"
    *_, written = dropped()
    assert len(dropped()) == before + 1 and 8 < written <= n * 240
    assert seed != SLOW or written < n * 240, "nothing is computed for a client that was dropped"


def test_c18_c26_what_fails_on_the_way(faulty):
    response = faulty.post(TEXT, LONG, seed=FAILS)
    assert "RuntimeError" in refused(response, 500)
    *chunks, last = events(faulty.post(TEXT, LONG, seed=FAILS, stream=True))
    assert len(chunks) >= 1 and last["error"]["type"] == "server_error"
    assert "memory" in refused(faulty.post(TEXT, LONG, seed=NO_MEMORY), 500)
    assert "RuntimeError" in refused(faulty.post(TEXT, LONG, seed=LEAVES), 500)
    assert "as the test wants it" in faulty.log.read_text(), "the cause is in the log"
    assert faulty.post(TEXT, LONG, max_tokens=2).status_code == 200
    assert faulty.get("/health").status_code == 200 and faulty.idle()


def test_c19_a_dead_engine(chat_model, tmp_path):
    with started(tmp_path, f"{chat_model} --use {FAULTS}") as item:
        *_, last = events(item.post(TEXT, LONG, seed=DIES, stream=True))
        assert "ended" in last["error"]["message"]
        start = time.monotonic()
        refused(item.get("/health"), 503)
        refused(item.post(TEXT, LONG), 503)
        assert time.monotonic() - start < 5


def test_c20_sigterm_drains(chat_model, tmp_path):
    with started(tmp_path, f"{chat_model} --use {FAULTS}") as item:
        with (
            item.client() as client,
            client.stream("POST", TEXT, json={**LONG, "max_tokens": 200, "stream": True}) as output,
        ):
            lines = output.iter_lines()
            next(lines)
            item.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            for _ in range(2):
                late = item.post(TEXT, prompt="O", max_tokens=1)
                assert "The server ends" in refused(late, 503)
                assert late.headers["retry-after"] == "1" and late.headers["connection"] == "close"
            assert item.get("/health").status_code == 503
            remaining = list(lines)
        assert (
            remaining[-2:] == ["data: [DONE]", ""]
            and sum("finish_reason" in line for line in remaining) >= 150
        )
        assert item.process.wait(20) == 0


def test_c20_what_runs_is_answered_whole_or_streamed(chat_model, tmp_path):
    """Six of each at once, more than are computed side by side; then the process ends by itself, long
    before its drain is over."""
    body = {**LONG, "max_tokens": 20}
    words = f"{chat_model} --use {FAULTS} --drain 60 --max-sequences 4"
    with started(tmp_path, words) as item:

        async def ask(client, stream):
            answer = await client.post(TEXT, json={**body, "stream": stream})
            if stream:
                return "".join(chunk["choices"][0]["text"] for chunk in events(answer))
            return answer.json()["choices"][0]["text"]

        async def all_at_once():
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=item.url, timeout=60, limits=limits) as client:
                alone = await ask(client, False)
                going = [asyncio.create_task(ask(client, bool(n % 2))) for n in range(12)]
                await asyncio.sleep(0.5)
                item.process.send_signal(signal.SIGTERM)
                return alone, await asyncio.gather(*going)

        alone, answers = asyncio.run(all_at_once())
        start = time.monotonic()
        assert answers == [alone] * 12
        assert item.process.wait(20) == 0 and time.monotonic() - start < 10
        assert "late" not in item.log.read_text()


def test_c20_a_request_that_was_accepted_is_answered(chat_model, tmp_path):
    """Bytes that the system has taken and the server has not read; headers in halves; a connection
    without a byte."""
    body = raw({"prompt": "O", "max_tokens": 2})
    with started(tmp_path, str(chat_model)) as item, contextlib.ExitStack() as stack:
        early = [stack.enter_context(item.connect()) for _ in range(2)]
        early[0].sendall(body[:40])
        time.sleep(0.5)
        item.process.send_signal(signal.SIGSTOP)
        late = [stack.enter_context(item.connect()) for _ in range(20)]
        for stored in late:
            stored.sendall(body)
        item.process.send_signal(signal.SIGTERM)
        item.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        early[0].sendall(body[40:])
        early[1].sendall(body)
        for stored in (*late, *early):
            answer = b""
            while piece := stored.recv(65_536):
                answer += piece
            assert b" 200 " in answer.split(b"\r\n")[0], "and then the connection is closed"
        assert item.process.wait(20) == 0


def test_c20_a_connection_that_sends_nothing_does_not_hold_the_end(chat_model, tmp_path):
    with (
        started(tmp_path, f"{chat_model} --drain 60") as item,
        item.connect(),
    ):
        time.sleep(0.3)
        start = time.monotonic()
        item.process.send_signal(signal.SIGTERM)
        assert item.process.wait(30) == 0 and time.monotonic() - start < 15


def test_c20_the_drain_is_bounded(chat_model, tmp_path):
    words = f"{chat_model} --use {FAULTS} --drain 1"
    with started(tmp_path, words) as item, item.connect() as stored:
        stored.sendall(raw(LONG))
        time.sleep(0.5)
        start = time.monotonic()
        item.process.send_signal(signal.SIGTERM)
        assert item.process.wait(20) == 0 and time.monotonic() - start < 15
        assert_given_up(stored)


def assert_given_up(connection):
    """What was under way is answered with an error object, not with a 500."""
    answer = b""
    while piece := connection.recv(65_536):
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 503 " in head.split(b"\r\n")[0], answer
    assert "send it again" in json.loads(body)["error"]["message"]


def test_c20_a_second_sigterm_does_not_wait(chat_model, tmp_path):
    """The first drains; the second ends at once, says so, and still ends with 0."""
    words = f"{chat_model} --use {FAULTS} --drain 60"
    with started(tmp_path, words) as item, item.connect() as stored:
        stored.sendall(raw(LONG))
        time.sleep(0.5)
        item.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            item.process.wait(1.5)
        assert "second signal" not in item.log.read_text()
        start = time.monotonic()
        item.process.send_signal(signal.SIGTERM)
        assert item.process.wait(20) == 0 and time.monotonic() - start < 10
        assert item.log.read_text().count("A second signal: ended at once") == 1
        assert_given_up(stored)


@pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="reads Linux's table of sockets"
)
def test_c25_no_port_but_its_own(faulty):
    process = Path(f"/proc/{faulty.process.pid}")
    texts = {str(item.readlink()) for item in (process / "fd").iterdir()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in (process / "net" / name).read_text().splitlines()[1:]
    ]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in texts]
    assert listening == [f"0100007F:{faulty.address[1]:04X}"], "this machine alone, one port"


def test_c22_the_same_prefix_at_once_gives_what_it_gives_alone(faulty):
    query = [
        {**LONG, "seed": seed, "max_tokens": 20, "prompt": "O Romeo, Romeo"}
        for seed in (1, 1, 2, 3)
    ]
    alone = [faulty.json(TEXT, item)["choices"][0]["text"] for item in query]

    async def together():
        async with httpx.AsyncClient(base_url=faulty.url, timeout=60) as client:
            output = await asyncio.gather(*(client.post(TEXT, json=item) for item in query))
        return [item.json()["choices"][0]["text"] for item in output]

    assert asyncio.run(together()) == alone and alone[0] == alone[1] != alone[2]


def page_of(server: Server) -> str:
    return re.findall(r"^The page is at (.*)", server.log.read_text(), re.MULTILINE)[0].split()[-1]


def test_the_page_over_what_is_served(chat_model, tmp_path):
    """Its numbers are of the very weights, of 8 bits here; answers stay the same bits; both end at
    SIGTERM."""
    with started(tmp_path, f"{chat_model} --bits 8 --dtype float32 --page") as item:
        body = {"prompt": "O Romeo", "max_tokens": 8, "seed": 3, "logprobs": 5}
        alone = item.json(TEXT, body)["choices"]
        url = page_of(item)
        (card,) = httpx.get(f"{url}api/models", timeout=60).json()
        run = httpx.post(
            f"{url}api/runs", json={"model": card["name"], "text": "O Romeo"}, timeout=60
        ).json()
        address = {"address": f"logits[{len(run['tokens']) - 1},5]"}
        cell = httpx.get(f"{url}api/runs/{run['run']}/cell", params=address, timeout=60).json()
        look = {"prompt": "O Romeo", "inspect": ["logits"], "positions": [-1]}
        logits = item.json("/v1/inspect", look)["values"]["logits"]["values"]
        assert cell["value"] == pytest.approx(logits[0][5], abs=1e-3)
        assert item.json(TEXT, body)["choices"] == alone
        assert httpx.get(url, headers={"host": "evil.example"}, timeout=60).status_code == 403
        upgrade = {"connection": "upgrade", "upgrade": "websocket"}
        assert httpx.get(url, headers=upgrade, timeout=60).status_code == 200
        item.process.send_signal(signal.SIGTERM)
        assert item.process.wait(30) == 0
        assert "WebSocket" not in item.log.read_text(), "advice of uvicorn's is no line of the log"


def test_the_page_of_a_server_with_keys_asks_for_one(chat_model, tmp_path):
    """By the browser's own window for a password; what other sites may not do stays so."""
    keys = tmp_path / "keys"
    keys.write_text("secret-1\nschlüssel\n")
    keys.chmod(0o640)
    with started(tmp_path, f"{chat_model} --page --api-key-file {keys}") as item:
        url = page_of(item)
        for wrong in (None, ("me", "secret"), ("secret-1", ""), ("me", "secret-1x")):
            for path in ("", "api/models", "app.js"):
                answer = httpx.get(f"{url}{path}", auth=wrong, timeout=60)
                assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith(
                    "Basic realm="
                )
                assert (
                    "key" in answer.text and answer.headers["x-content-type-options"] == "nosniff"
                )
        bad = {"authorization": "Basic %%%"}
        assert httpx.get(url, headers=bad, timeout=60).status_code == 401
        for right in (("me", "secret-1"), ("", "schlüssel".encode())):
            assert httpx.get(f"{url}api/models", auth=right, timeout=60).status_code == 200
        foreign = {"host": "evil.example"}
        assert (
            httpx.get(url, auth=("me", "secret-1"), headers=foreign, timeout=60).status_code == 403
        )


def test_names_hosts_and_origins_of_a_server_without_keys(chat_model, tmp_path):
    """On every address: by any IP address and by its own names, and by no name that another site
    points here."""
    words = f"{chat_model} --host 0.0.0.0 --no-api-key --name mine/a-1 --allow-host llm.example"
    with started(tmp_path, words) as item:
        port = item.url.rpartition(":")[2]
        item.url = f"http://127.0.0.1:{port}"
        for name in (
            "127.0.0.1",
            "10.1.2.3",
            "[::1]",
            "[fe80::1]",
            "localhost",
            socket.gethostname(),
            "llm.example",
        ):
            with item.client() as client:
                assert (
                    client.get("/v1/models", headers={"host": f"{name}:{port}"}).status_code == 200
                ), name
        for name in ("evil.example", "127.0.0.1.evil.example", "x.llm.example", "1.2.3", "::1::"):
            answer = item.get("/v1/models", headers={"host": f"{name}:{port}"})
            assert "--allow-host" in refused(answer, 403), name
        for header in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
        ):
            refused(item.post(TEXT, prompt="a", headers=header), 403)
        refused(item.post(TEXT, prompt="a", headers={"content-type": "text/plain"}), 415)
        assert item.json(TEXT, prompt="a", model="mine/a-1", max_tokens=1)["model"] == "mine/a-1"
        assert item.get("/v1/models/mine/a-1").json()["root"] == "mine/a-1"


def test_a_forwarded_address_is_believed_of_a_named_proxy_alone(chat_model, tmp_path, faulty):
    forged = {"x-forwarded-for": "9.9.9.9"}
    faulty.post(TEXT, prompt="a", max_tokens=1, headers={**forged, "x-request-id": "forged"})
    assert faulty.line("forged")["client"] == "127.0.0.1"
    with started(tmp_path, f"{chat_model} --proxy 127.0.0.1") as item:
        item.post(TEXT, prompt="a", max_tokens=1, headers={**forged, "x-request-id": "believed"})
        assert item.line("believed")["client"] == "9.9.9.9"


@pytest.mark.skipif(os.name != "posix", reason="rights of files as POSIX has them")
def test_a_file_of_keys_that_all_can_read_is_said(tmp_path, capsys):
    from glassformer.serve.server import keys_of

    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    for mode, message in ((0o600, 0), (0o640, 0), (0o644, 1), (0o604, 1)):
        keys.chmod(mode)
        assert keys_of(keys) == ["secret"]
        stderr = capsys.readouterr().err
        assert (
            stderr.count("\n") == message
            and ("chmod 640" in stderr) == bool(message)
            and "secret" not in stderr
        )


def test_a_taken_port_is_said_before_anything_is_loaded(chat_model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = f"-X importtime -m glassformer serve {chat_model} --port {port}"
        command = [sys.executable, *line.split()]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = ended.stderr.splitlines()
    assert ended.returncode == 2 and f"Port {port} is in use; port" in lines[-1]
    assert not [line for line in lines if line.endswith("| torch")], (
        "torch was not imported before it was known"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--host 0.0.0.0", "--api-key-file"),
        ("--api-key-file empty", "holds no key"),
        ("--api-key-file nothing", "cannot be read"),
        ("--port 70000", "0 to 65535"),
        ("--proxy nginx --port 0", "--proxy nginx is no IP address"),
        ("--name a --name b --port 0", "--name is given 2 times for 1 models"),
        ("--name 'a b' --port 0", '--name "a b" is no name'),
        ("--drain 0", "--drain is 0"),
        ("--max-queue 0 --port 0", "max_queue is 0"),
        ("--max-context 9999 --port 0", "max_context is 9999"),
        ("--chat-template broken.jinja --port 0", "chat template is broken"),
        ("--chat-template nothing --port 0", "there is no such file"),
    ],
)
def test_what_starts_wrong_is_a_sentence(
    chat_model, tmp_path, monkeypatch, terminal, words, message
):
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n")
    Path("broken.jinja").write_text("{% for %}")
    notes = terminal.refused(f"serve {chat_model} {words}")
    assert message in notes and notes.count("\n") == 1, notes


def test_whole_headers_stop_their_clock(monkeypatch):
    """An answer may take longer than headers may; half a request leaves the clock running."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from glassformer.serve.server import TimedProtocol

    class Clock:
        cancelled = False

        def cancel(self):
            self.cancelled = True

    def received(self, data):
        scope = {"method": "GET", "http_version": "1.1", "state": {}}
        cycle = SimpleNamespace(keep_alive=True, scope=scope)
        self.cycle = cycle if data.endswith(b"\r\n\r\n") else self.cycle

    monkeypatch.setattr(H11Protocol, "data_received", received)
    protocol, clock = object.__new__(TimedProtocol), Clock()
    protocol.cycle, protocol.headers_clock = None, clock
    protocol.data_received(b"GET / HTTP/1.1\r\n")
    assert not clock.cancelled and protocol.headers_clock is clock
    protocol.data_received(b"Host: a\r\n\r\n")
    assert clock.cancelled and protocol.headers_clock is None


def test_the_collector_walks_no_module_while_it_serves(monkeypatch):
    """A collection after a body of many lists took half a second with all modules, and nobody was
    answered meanwhile."""
    frozen = list[int]()
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda self, sockets: frozen.append(gc.get_freeze_count())
    )
    try:
        serving.run(Registry([]), "0", socket.socket(), "127.0.0.1", None, 0)
    finally:
        gc.unfreeze()
    assert frozen[0] > 50_000


@contextlib.contextmanager
def listening(app: Any) -> Iterator[tuple[str, int]]:
    """An application in a thread of this process, behind the server's own protocol."""
    config = uvicorn.Config(app, http=serving.TimedProtocol, ws="none", log_level="critical")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield bound.getsockname()
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize("by_loop", [False, True])
def test_chunks_of_another_thread_arrive_whole_and_in_order(monkeypatch, is_partial, by_loop):
    """A reader that is slow gets the same bytes; nothing is written to a connection that is gone."""
    if is_partial:  # the system takes a half where it would take all
        half = SimpleNamespace(write=lambda file, data: os.write(file, data[: len(data) // 2]))
        monkeypatch.setattr(serving, "os", half)
    pieces = [bytes([97 + number % 26]) * (1 + 7919 * number % 60_000) for number in range(120)]
    written = list[bool]()
    writers = list[Any]()
    over = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        write = scope["state"][WRITE_CHUNK]
        writers.append(write)
        assert not write(b"before its headers")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, piece in enumerate(pieces):
            if number == 12:  # the reader has all of them
                await asyncio.sleep(0.5)
                if not by_loop:  # two before the loop comes to the remainder of the first
                    two = functools.partial(map, write, pieces[12:14])
                    written.extend(await asyncio.to_thread(list, two()))
            if len(written) > number:
                pass
            elif number < 8:  # they wait in the loop's own buffer
                written.append(False)
            elif number % 4 > 1:
                written.append(await asyncio.to_thread(write, piece))
            else:  # the reader makes room meanwhile, which the loop does not notice
                time.sleep(0.02)
                written.append(write(piece))
            if not written[number]:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        assert not write(b"after its end")
        over.set()

    with listening(app) as (host, port):
        with socket.socket() as item:
            item.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            item.connect((host, port))
            item.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += (piece := item.recv(1 << 14))
                assert piece, "the answer was cut off"
                time.sleep(0.0005)
        assert over.wait(20)
    _, _, body = received.partition(b"\r\n\r\n")
    expected = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    assert body == expected + b"0\r\n\r\n"
    assert any(written) and not all(written), "both ways were taken"
    assert not writers[0](b"to nobody")


def test_the_engine_writes_plain_chunks_and_the_loop_what_is_not(chat_model, monkeypatch):
    """The same text by either thread, and as much of it is counted."""
    threads = list[str]()
    write_chunk = serving.TimedProtocol.write_chunk

    def counted(self: Any, body: bytes) -> bool:
        is_written = write_chunk(self, body)
        if is_written:
            threads.append(threading.current_thread().name)
        return is_written

    monkeypatch.setattr(serving.TimedProtocol, "write_chunk", counted)
    models = loading.open_models([str(chat_model)], EngineLimits(), dtype="float32")
    app, api = application(models, "0", hosts=None)
    body = {"prompt": "O Romeo", "max_tokens": 60, "seed": 3, "ignore_eos": True, "n": 2}
    try:
        with listening(app) as (host, port):
            url = f"http://{host}:{port}{TEXT}"
            whole = httpx.post(url, json=body, timeout=60).json()
            streamed = httpx.post(url, json={**body, "stream": True}, timeout=60)
            scored = httpx.post(url, json={**body, "stream": True, "logprobs": 1}, timeout=60)
    finally:
        models.close()
    texts = [choice["text"] for choice in whole["choices"]]
    for answer in (streamed, scored):
        choices = [choice for event in events(answer) for choice in event["choices"]]
        assert texts == [
            "".join(choice["text"] for choice in choices if choice["index"] == index)
            for index in range(2)
        ]
    assert threads.count("glassformer-engine") > 60
    assert b'inter_token_latency_seconds_count{model_name="' in api.metrics.text()
    counts = re.findall(rb"inter_token_latency_seconds_count.* (\S+)", api.metrics.text())
    assert sum(map(float, counts)) == 3 * 2 * 59

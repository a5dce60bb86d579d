"""Threads and bytes that clients share: in turns, in fair parts, given back when a client goes."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from functools import partial

import pytest

from glassformer.serve.asgi.limits import PIECE_BYTES
from glassformer.serve.asgi.replies import HttpError, json_response
from glassformer.serve.lanes import ByteBudget, Lane

from .conftest import started

TEXT = "/v1/completions"


async def _until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_one_client_leaves_a_thread_for_another():
    """Twenty pieces of work of one client hold one thread of two; another's first runs at once."""
    order = []
    release = threading.Event()

    def work(name):
        if name != "b":
            release.wait(20)
        order.append(name)
        return name

    async def run():
        lane = Lane(2)
        tasks = [asyncio.create_task(lane.run("a", work, f"a{n}")) for n in range(20)]
        await _until(lambda: lane.running["a"])
        assert await asyncio.wait_for(lane.run("b", work, "b"), 20) == "b"
        assert lane.running["a"] == 1 and len(lane.waiting) == 19
        release.set()
        assert await asyncio.gather(*tasks) == [f"a{n}" for n in range(20)]
        assert not lane.running and not len(lane.waiting)

    asyncio.run(run())
    assert order == ["b", *(f"a{n}" for n in range(20))]


def test_clients_take_turns():
    order = []

    async def run():
        lane = Lane(1)
        names = ["a", "a", "a", "b", "b", "c"]
        await asyncio.gather(*(lane.run(name, order.append, name) for name in names))

    asyncio.run(run())
    assert order == ["a", "a", "b", "c", "a", "b"], "the first began before the others came"


class Panic(BaseException):
    """What a library in Rust raises."""


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, Panic])
def test_work_gives_its_thread_back_whatever_it_raises(error):
    """No future holds a StopIteration: the client would wait for ever, and the thread would never be
    free. SystemExit in a task ends the event loop, and what is no ``Exception`` gets no answer."""

    def work():
        raise error("planted")

    async def run():
        lane = Lane(1)
        with pytest.raises(RuntimeError, match=f"{error.__name__}: planted"):
            await asyncio.wait_for(lane.run("a", work), 5)
        assert not lane.running
        assert await asyncio.wait_for(lane.run("b", len, "b"), 5) == 1

    asyncio.run(run())


def test_a_client_that_leaves_holds_its_thread_until_the_work_ends():
    """Otherwise one that comes and leaves would have as many threads as it likes; what it left in
    the queue never starts."""
    release, ran = threading.Event(), []

    async def run():
        lane = Lane(2)
        first = asyncio.create_task(lane.run("a", release.wait, 20))
        second = asyncio.create_task(lane.run("a", ran.append, 1))
        await _until(lambda: lane.running["a"])
        for task in (first, second):
            task.cancel()
        await asyncio.wait({first, second})
        assert first.cancelled() and second.cancelled()
        assert lane.running["a"] == 1 and not len(lane.waiting)
        third = asyncio.create_task(lane.run("a", ran.append, 3))
        await asyncio.sleep(0.05)
        assert ran == []
        release.set()
        await third

    asyncio.run(run())
    assert ran == [3]


def test_an_error_is_the_works_own_and_frees_its_thread():
    async def run():
        lane = Lane(1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await lane.run("a", divmod, 1, 0)
        assert await lane.run("a", divmod, 7, 2) == (3, 1)

    asyncio.run(run())


def test_bytes_are_bounded_and_given_back():
    """A client with less than its share is let in where others hold all."""
    budget = ByteBudget(100)
    with budget.account("a") as greedy:
        greedy(90)
        greedy(10)
        with pytest.raises(HttpError, match="as many bytes") as refused:
            greedy(1)
        assert refused.value.status == 503 and refused.value.headers == {"retry-after": "1"}
        with budget.account("b") as fair:
            fair(50)
            with pytest.raises(HttpError):
                fair(1)
        assert budget.held == {"a": 100}
    assert not budget.held


def test_small_requests_of_another_key_are_answered_while_one_attacks(chat_model, tmp_path):
    """Twenty bodies of megabytes, and twenty large texts: another key's request takes seconds at
    most on a busy machine, where it was behind all of them."""
    import httpx

    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    keys.chmod(0o600)
    large = (
        (TEXT, {"prompt": [5] * 1_500_000}),
        ("/tokenize", {"prompt": "so shaken as we are " * 50_000}),
    )
    with started(tmp_path, f"{chat_model} --api-key-file {keys}") as item:
        headers = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]

        async def attack(path, body):
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=item.url, timeout=300, limits=limits) as client:
                small = {"prompt": "O", "max_tokens": 2}
                await client.post(TEXT, json=small, headers=headers[1])
                content = httpx.Request("POST", item.url, json=body).content
                sent = {**headers[0], "content-type": "application/json"}
                going = [
                    asyncio.create_task(client.post(path, content=content, headers=sent))
                    for _ in range(20)
                ]
                await asyncio.sleep(1)
                start = time.monotonic()
                answer = await client.post(TEXT, json=small, headers=headers[1])
                took = time.monotonic() - start
                pending = sum(not task.done() for task in going)
                for task in going:
                    task.cancel()
                await asyncio.wait(going)
                return answer.status_code, took, pending

        for path, body in large:
            status, took, pending = asyncio.run(attack(path, body))
            assert status == 200 and took < 5 and pending > 3, (path, status, took, pending)


def test_half_sent_bodies_have_a_bound(server):
    """Beyond it a client is asked to come again; when the clients have left, all is given back and
    bodies are read."""
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 8388608\r\n\r\n"
    )
    connections = [server.connect() for _ in range(24)]
    statuses = []
    for item in connections:
        item.sendall(head)
        item.sendall(b" " * (7 << 20))
    for item in connections:
        item.settimeout(0.3)
        try:
            statuses.append(item.recv(4096).split()[1])
        except TimeoutError:
            statuses.append(None)
    for item in connections:
        item.close()
    assert statuses.count(b"503") >= 5 and statuses.count(None) >= 15, statuses
    end = time.monotonic() + 20
    while server.get("/load").json()["server_load"] and time.monotonic() < end:
        time.sleep(0.05)
    body = {"prompt": [5] * 1_500_000}
    assert server.post(TEXT, body).status_code == 400, "the bytes were given back"


def test_of_one_client_the_oldest_request_comes_first():
    """Otherwise a client's hundred requests are all half answered, and their parts in memory."""
    order, release = [], threading.Event()

    def work(name):
        release.wait(20)
        order.append(name)

    async def request(lane, age):
        for step in "abc":
            await lane.run("client", work, f"{age}{step}", age=age)

    async def run():
        lane = Lane(1)
        tasks = [asyncio.create_task(request(lane, age)) for age in range(4)]
        await _until(lambda: len(lane.waiting) == 3)
        release.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    ended = [order.index(f"{age}c") for age in range(4)]
    starts = [order.index(f"{age}a") for age in range(4)]
    assert ended == sorted(ended)
    assert starts[2] > ended[0] and starts[3] > ended[1], "two requests are under way at most"


SMALL_BUDGET = """
import socket
from glassformer.serve.asgi import limits, listening

limits.MOST_ANSWERS, limits.ACCOUNT_SECONDS = 1 << 19, 0.02
listen = listening._listen

def small(host, port):
    result = listen(host, port)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    return result

listening._listen = small
"""


@pytest.fixture(scope="module")
def poor(chat_model, tmp_path_factory):
    """A server that holds half a MiB of answers."""
    folder = tmp_path_factory.mktemp("poor")
    (folder / "limits.py").write_text(SMALL_BUDGET)
    keys = folder / "keys"
    keys.write_text("one\ntwo\n")
    keys.chmod(0o600)
    words = f"{chat_model} --use {folder / 'limits.py'} --api-key-file {keys}"
    with started(folder, words) as item:
        yield item


LONG = {"prompt": "O", "n": 8, "max_tokens": 200, "logprobs": 20, "ignore_eos": True}


def ask(server, key, body, path=TEXT):
    return server.post(path, body, headers={"authorization": f"Bearer {key}"})


def running(server):
    """The gauge of running requests where it is not 0."""
    text = server.get("/metrics", headers={"authorization": "Bearer two"}).text
    return "".join(re.findall(r"glassformer:num_requests_running\S* [1-9].*", text))


def test_tokens_with_their_likeliest_are_counted_until_they_are_answered(poor):
    answer = ask(poor, "one", LONG)
    assert answer.status_code == 503 and "as many bytes" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "1"
    answer = ask(poor, "one", {**LONG, "n": 1, "max_tokens": 20})
    assert answer.status_code == 200, "all was given back"


def test_a_stream_that_nobody_reads_is_counted_and_ends(poor):
    """It ends with an error, and others are answered."""
    body = json.dumps({**LONG, "stream": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer one\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(poor.address)
    with connection:
        connection.sendall(head.encode() + body)
        text = connection.recv(16).decode()
        end = time.monotonic() + 60
        while running(poor) and time.monotonic() < end:
            time.sleep(0.05)
        assert ask(poor, "two", {**LONG, "n": 1, "max_tokens": 20}).status_code == 200
        text += b"".join(iter(partial(connection.recv, 1 << 16), b"")).decode()
    assert "as many bytes" in text and "[DONE]" in text
    assert text.count("token_logprobs") < 1600


def test_values_that_are_inspected_are_counted(poor):
    body = {"prompt": "so shaken as we are " * 8, "inspect": ["*"], "positions": [-1]}
    answer = ask(poor, "one", body, "/v1/inspect")
    assert answer.status_code == 503, answer.text[:200]
    assert ask(poor, "one", {**body, "inspect": ["decoder.out"]}, "/v1/inspect").status_code == 200


def test_a_large_answer_is_sent_in_pieces_and_counted_until_the_last():
    """What a client does not read stays where it is counted."""
    sizes, open_at = list[int](), list[bool]()
    answer = json_response(b"x" * (2 * PIECE_BYTES + 1))
    closed = threading.Event()
    answer.close = closed.set

    async def send(message):
        sizes.append(len(message.get("body", b"")))
        open_at.append(not closed.is_set())

    asyncio.run(answer({"type": "http"}, None, send))
    assert sizes == [0, PIECE_BYTES, PIECE_BYTES, 1] and all(open_at) and closed.is_set()


def test_an_answer_to_a_client_that_left_is_given_back():
    closed = threading.Event()
    answer = json_response({})
    answer.close = closed.set

    async def send(message):
        raise OSError

    with pytest.raises(OSError):
        asyncio.run(answer({"type": "http"}, None, send))
    assert closed.is_set()

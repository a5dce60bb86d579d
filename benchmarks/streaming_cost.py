"""The server's processor time for a streamed token of a small model, with and without its forward
passes.

    git worktree add ../before COMMIT
    python benchmarks/streaming_cost.py [../before] . [--model tiny] [--clients 1 8 32] [--turns 5]

A server of each tree runs all the while, one thread each for what computes; they take turns. A turn
is a stream of ``--tokens`` tokens for each client, all at once. A figure is the microseconds of
the server's process, user and system, divided by the tokens of all clients; beside it what is left
when the engine's forward passes (its thread's own time) are subtracted. Least and median of turns.
--health asks for /health a hundred times a second meanwhile, and says how long that took; these
requests are then in the figures.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

SERVER = """
import mmap, struct, sys, threading, time
from glassformer.serve.engine import runner
file = open(sys.argv[1], "r+b")
total = mmap.mmap(file.fileno(), 8)
seconds = 0.0
def timed(forward):
    def wrapper(*args):
        global seconds
        start = time.thread_time()
        try:
            return forward(*args)
        finally:
            seconds += time.thread_time() - start
            struct.pack_into("d", total, 0, seconds)
    return wrapper
runner.PagedRunner.forward = timed(runner.PagedRunner.forward)
from glassformer.cli import main
sys.exit(main(["serve", sys.argv[2], "--port", sys.argv[3]]))
"""
PROMPT = "O Romeo, Romeo! wherefore art thou"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """A server of one tree."""

    def __init__(self, tree: Path, model: str, folder: Path) -> None:
        self.port = free_port()
        path = folder / f"forward-{self.port}"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self.forward = mmap.mmap(file.fileno(), 8)
        command = [sys.executable, "-c", SERVER, str(path), model, str(self.port)]
        source = str(tree.resolve() / "src")
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        with (folder / f"log-{self.port}").open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit((folder / f"log-{self.port}").read_text())

    def seconds(self) -> tuple[float, float]:
        """Seconds of the process so far, and of its forward passes."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        fields = [(task / "schedstat").read_text().split()[0] for task in threads]
        (forward,) = struct.unpack_from("d", self.forward, 0)
        return sum(map(int, fields)) / 1e9, forward

    def stream(self, path: str, body: bytes, texts: list[bytes]) -> None:
        """Reads one stream to its end."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            pieces = []
            while piece := sock.recv(1 << 16):
                pieces.append(piece)
        texts.append(b"".join(pieces))

    @contextmanager
    def asking_health(self, answer_times: list[float]) -> Iterator[None]:
        """Collects the seconds of each answer of /health."""
        over = threading.Event()

        def ask() -> None:
            while not over.wait(0.01):
                start = time.perf_counter()
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").close()
                answer_times.append(time.perf_counter() - start)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def turn(self, clients: int, tokens: int, chat: bool) -> tuple[float, float]:
        """Microseconds a token, and those of no forward pass."""
        job = {"max_tokens": tokens, "stream": True, "temperature": 0.8, "ignore_eos": True}
        texts: list[bytes] = []
        path = "/v1/chat/completions" if chat else "/v1/completions"
        message = {"messages": [{"role": "user", "content": PROMPT}]}
        bodies = [
            json.dumps({**job, "seed": seed, **(message if chat else {"prompt": PROMPT})}).encode()
            for seed in range(clients)
        ]
        before = self.seconds()
        threads = [
            threading.Thread(target=self.stream, args=(path, body, texts)) for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total, forward = (b - a for a, b in zip(before, self.seconds(), strict=True))
        assert all(b"data: [DONE]" in text for text in texts), texts[0][:500]
        count = clients * tokens
        return 1e6 * total / count, 1e6 * (total - forward) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path, nargs="+")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--health", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        servers = [Server(tree, args.model, Path(folder)) for tree in args.trees]
        try:
            print("| clients | tree | a token, us | without forward passes, us |")
            print("|---|---|---|---|")
            for clients in args.clients:
                turns, health = [], [list[float]() for _ in servers]
                for _ in range(args.turns + 1):
                    turns.append([])
                    for server, answer_times in zip(servers, health, strict=True):
                        asking = (
                            server.asking_health(answer_times) if args.health else nullcontext()
                        )
                        with asking:
                            turns[-1].append(server.turn(clients, args.tokens, args.chat))
                del turns[0]
                for number, tree in enumerate(args.trees):
                    cells = (
                        f"{min(values):.0f}, {statistics.median(values):.0f}"
                        for values in zip(*(turn[number] for turn in turns), strict=True)
                    )
                    print(f"| {clients} | {tree} | {' | '.join(cells)} |", flush=True)
                    if args.health:
                        *_, last = statistics.quantiles(health[number], n=100)
                        middle = statistics.median(health[number])
                        print(
                            f"/health: {len(health[number])} answers, median {1e3 * middle:.1f} ms, "
                            f"99 of 100 within {1e3 * last:.1f} ms, slowest "
                            f"{1e3 * max(health[number]):.1f} ms"
                        )
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait()


if __name__ == "__main__":
    main()

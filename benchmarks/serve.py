"""The server under load: tokens a second and the time to the first token at 1, 8 and 32 clients,
streaming.

    python benchmarks/serve.py [MODEL] [--clients 1 8 32] [--requests 3] [--tokens 64] [--repeats 3]
    [--bits 8] [--peer NAME=URL[=PROCESS] ...] [--clock cpu]
    python benchmarks/serve.py [MODEL] --keep-alive 200
    python benchmarks/serve.py --make FOLDER --tokenizer ../shared/data/tok-llama2 [--depth 22]

--make writes a Llama of 1.1 B parameters with random weights: FOLDER/model for us and for vLLM, and
FOLDER/BF16.gguf, Q8_0.gguf, Q4_0.gguf for llama.cpp. MODEL is started here as `glassformer serve`
starts it (the small one of the package where none is given); a peer is any server of OpenAI's API
that runs already, such as llama.cpp's (`llama-server -m FILE.gguf --port 8080 -np 32`) or vLLM's,
with the same model: --peer llama.cpp=http://127.0.0.1:8080. Every client sends its requests one
after another, each with a prompt of its own, at temperature 0, and ignores the end of the text.
Ours and the peers take turns; what is shown are medians over the repeats, with the least and the
greatest. On a machine that others use, --clock cpu counts tokens a second of the processor's time
that a server's process spends (a peer's is named by its number after the address); give every
server one thread then, since threads that wait by spinning spend time too. --keep-alive sends that
many requests one after another over one connection instead, and shows milliseconds of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx


@dataclass
class Load:
    """Measurements of a crowd of clients: tokens a second together, and each request's seconds to
    its first token."""

    rate: float = 0.0
    first: list[float] = field(default_factory=list)


async def one_request(client: httpx.AsyncClient, prompt: str, tokens: int, load: Load) -> int:
    """Stream one completion; the tokens that it counted."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    body["stream_options"] = {"include_usage": True}
    start, observed, counted = time.perf_counter(), False, 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if not observed and chunk["choices"]:
                observed = True
                load.first.append(time.perf_counter() - start)
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
    return counted


def processor_seconds(process: int) -> float:
    """What all threads of a process have spent (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def crowd(
    url: str, clients: int, requests: int, tokens: int, words: int, process: int | None = None
) -> Load:
    """All clients at once; by the clock on the wall, or by the processor's time of a process."""

    def now() -> float:
        return time.perf_counter() if process is None else processor_seconds(process)

    load = Load()

    async def client_loop(number: int, client: httpx.AsyncClient) -> int:
        total = 0
        for turn in range(requests):
            prompt = f"Story {number} {turn}: " + "once upon a time there was a king and " * (
                words // 8
            )
            total += await one_request(client, prompt, tokens, load)
        return total

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        start = now()
        counted = await asyncio.gather(*(client_loop(number, client) for number in range(clients)))
        load.rate = sum(counted) / (now() - start)
    return load


async def keep_alive(url: str, requests: int) -> dict[str, list[float]]:
    """Milliseconds of each of many requests over one connection, which stays open."""
    body = {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    calls = {
        "GET /health": ("GET", "/health", None),
        "two tokens": ("POST", "/v1/completions", body),
    }
    latency: dict[str, list[float]] = {name: [] for name in calls}
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        for _ in range(requests):
            for name, (method, path, query) in calls.items():
                start = time.perf_counter()
                (await client.request(method, path, json=query)).raise_for_status()
                latency[name].append(1000 * (time.perf_counter() - start))
    return latency


def start(model: str | None, bits: int | None) -> tuple[subprocess.Popen[str], str]:
    """Our own server on a free port."""
    from glassformer.serve.page.models import shipped

    words = [sys.executable, "-m", "glassformer", "serve", model or str(shipped()), "--port", "0"]
    words += ["--bits", str(bits)] if bits else []
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip().removesuffix("/v1")
    while True:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return process, url
        except httpx.TransportError:
            time.sleep(0.1)


def make(folder: Path, depth: int, words: str) -> None:
    """The same random weights in the layouts that the servers read."""
    from generate import shape

    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.formats import gguf, pretrained

    model, words_of = (
        build_model(
            shape("llama", depth),
            seed=0,
        ).bfloat16(),
        pretrained.find(words),
    )
    glassformer.save(model, folder / "model", words_of)
    for kind in ("BF16", "Q8_0", "Q4_0"):
        gguf.save(model, folder / f"{kind}.gguf", kind, words_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=32, help="words of a prompt, about")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bits", type=int)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL[=PROCESS]")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--tokenizer", help="of the model that --make writes")
    parser.add_argument("--depth", type=int, default=22, help="of the model that --make writes")
    parser.add_argument(
        "--keep-alive", type=int, metavar="REQUESTS", help="requests over one connection instead"
    )
    args = parser.parse_args()
    if args.make:
        return make(args.make, args.depth, args.tokenizer)
    servers, processes = dict[str, str](), dict[str, int]()
    for name, address, *number in (item.split("=") for item in args.peer):
        servers[name] = address
        processes |= {name: int(number[0])} if number else {}
    if args.clock == "cpu" and (missing := servers.keys() - processes.keys()):
        parser.error(f"--clock cpu needs the process of {', '.join(missing)}: NAME=URL=PROCESS")
    process, url = start(args.model, args.bits)
    servers = {"glassformer": url, **servers}
    processes["glassformer"] = process.pid
    try:
        for server in servers.values():
            asyncio.run(crowd(server, 1, 1, 8, args.words))  # warm
        print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
        for name, server in servers.items() if args.keep_alive else ():
            for call, times in asyncio.run(keep_alive(server, args.keep_alive)).items():
                spread = f"{statistics.median(times):.1f} ms ({min(times):.1f} to {max(times):.1f})"
                print(f"{name:13} {call:12} {spread}", flush=True)
        if args.keep_alive:
            return
        print(
            "clients  server         tokens/s (least to greatest)      first token, ms (greatest)"
        )
        for clients in args.clients:
            result: dict[str, list[Load]] = {name: [] for name in servers}
            for turn in range(args.repeats):
                order = list(servers.items())
                for name, server in order if turn % 2 == 0 else order[::-1]:
                    clock = processes[name] if args.clock == "cpu" else None
                    shape = (clients, args.requests, args.tokens, args.words)
                    result[name].append(asyncio.run(crowd(server, *shape, clock)))
            for name, loads in result.items():
                rates, first = (
                    [item.rate for item in loads],
                    [1000 * s for item in loads for s in item.first],
                )
                spread = f"{statistics.median(rates):9.1f} ({min(rates):.1f} to {max(rates):.1f})"
                print(
                    f"{clients:7}  {name:13} {spread:32} {statistics.median(first):9.1f} "
                    f"({max(first):.1f})",
                    flush=True,
                )
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()

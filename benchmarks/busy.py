"""Two trees of Glassformer on a busy machine: training, decode, prefill and the server beside so
many busy processes.

    git worktree add ../before COMMIT && (cd ../before && python hatch_build.py)
    python benchmarks/busy.py ../before . [--busy 12] [--rows training decode ...] [--turns 7]
    [--seconds 4]
    python benchmarks/busy.py ../before . --idle      # what it costs where nothing else runs

Each row runs in two processes that stay up, one with each tree on its path; they take turns, the
first to go changing each time. They are ready before the busy processes start, and a turn lasts
--seconds and until its work is done. The rate is of the clock on the wall, on all cores; the ratio
is second tree / first tree, turn by turn: median and range. --spin adds the second tree with other
values of GOMP_SPINCOUNT. Exit 1 where the ratio of the medians is below the aim.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

START = """
import glassformer  # before torch, as the command line does it
import torch
from glassformer import config, generate, nn, training

build_model = nn.build_model

block = config.Block(config.Attention(6), config.GatedMLP(1024), config.RMSNorm())
shape = config.Decoder(384, 1024, config.Embed(65), config.Stack(6, (block,), config.Rotary()))

def tokens(prompt, many):  # each when it is there, in text after text
    model = build_model(shape, seed=0).eval()
    while True:
        yield from (1 for _ in generate(model, None, prompt, max_new=many, temperature=0, eos=()))
"""
TRAINING = """
try:
    from glassformer.core.config import run
    from glassformer.families import find
    from glassformer.fast.training.execution import choose_execution
except ImportError:  # a tree from before core and rooms
    from glassformer.config import run
    from glassformer.recipes import find
    choose_execution = training.choose_execution

Batch, Causal = training.Batch, training.Causal
draw = torch.Generator().manual_seed(0)
feed = (Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in
        iter(lambda: torch.randint(256, (32, 129), generator=draw), None))
model = build_model(find("glass/1m"), seed=0)
settings = run.Train(steps=10**9, batch=32, schedule=run.Constant(), dtype="float32", compile="no")
execution = choose_execution(model, next(feed), Causal(), settings)
work = (step.tokens for step in training.train(model, feed, settings=settings, execution=execution))
"""
SERVER = """
import atexit, json, subprocess, sys, tempfile, urllib.request
from concurrent.futures import ThreadPoolExecutor

try:
    from glassformer.serve.page.models import shipped
except ImportError:
    from glassformer.page.models import shipped

words = [sys.executable, "-m", "glassformer", "serve", str(shipped()), "--port", "0"]
notes = tempfile.TemporaryFile("w+")
server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=notes, text=True)
atexit.register(server.kill)
url = server.stdout.readline().strip().removesuffix("/v1")
if not url:
    notes.seek(0)
    sys.exit(f"the server did not start: {notes.read().strip()}")

def complete(number):
    body = {"prompt": f"Story {number}: ", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), kind)
    return json.load(urllib.request.urlopen(request, timeout=600))["usage"]["completion_tokens"]

def requests():
    with ThreadPoolExecutor(4) as clients:
        while True:
            yield sum(clients.map(complete, range(4)))

work = requests()
"""
ROWS = {  # name: what is counted, what makes a generator of how much of it was done
    "training": ("tokens of glass/1m, 32 x 128", START + TRAINING),
    "decode": ("tokens after 16, 6 layers 384 wide", START + "work = tokens([5] * 16, 128)"),
    "prefill": ("prompts of 512, the same model", START + "work = tokens([5] * 512, 1)"),
    "server": ("tokens of 4 clients, the small model of the package", SERVER),
}
WORKER = """
import time
for _ in range(3):  # warm: caches, kernels, copies of weights
    next(work)
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < float(line):
        done += next(work)
    print(done / (time.perf_counter() - begun), flush=True)
"""


class Worker:
    """A process with one tree on its path, which does a row's work for some seconds when it is told
    to."""

    def __init__(self, tree: Path, row: str, environment: dict[str, str]) -> None:
        places = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "HF_HUB_OFFLINE": "1",
            **environment,
        }
        code = f"import sys\n{ROWS[row][1]}\n{WORKER}"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code], env=places, text=True, **pipes
        )
        self.rates: list[float] = []

    def answer(self) -> str:
        """The next line it writes."""
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit("a worker failed; its message stands above")
        return line

    def turn(self, seconds: float) -> None:
        """One turn, its rate kept."""
        print(seconds, file=self.process.stdin, flush=True)
        self.rates.append(float(self.answer()))

    def stop(self) -> None:
        """End it, and with it its server."""
        self.process.stdin.close()
        self.process.wait()


def compare(row: str, sides: dict[str, Worker], turns: int, seconds: float) -> float:
    """Print a line for each side; the ratio of the first two medians."""
    for turn in range(turns):
        for worker in list(sides.values())[:: -1 if turn % 2 else 1]:
            worker.turn(seconds)
    before, *_ = sides.values()
    for name, worker in sides.items():
        ratios = [b / a for a, b in zip(before.rates, worker.rates, strict=True)]
        middle, low, high = (
            f"{number:,.4g}"
            for number in (statistics.median(worker.rates), min(worker.rates), max(worker.rates))
        )
        rate = f"{middle} ({low} to {high})"
        ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"| {row}: {ROWS[row][0]} | {name} | {rate} | {ratio} |", flush=True)
    middles = [statistics.median(worker.rates) for worker in sides.values()]
    return middles[1] / middles[0]


def main() -> int:
    """Lines of a table: what ran, on which side, how much a second, the ratio to the first side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "trees", type=Path, nargs=2, metavar="TREE", help="before and after: checkouts with kernels"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument(
        "--busy", type=int, default=12, help="processes that compute beside it (12)"
    )
    parser.add_argument("--idle", action="store_true", help="none; the aim is then 0.98, else 10")
    parser.add_argument("--turns", type=int, default=7, help="turns of each (7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn (4)")
    parser.add_argument(
        "--spin",
        type=int,
        nargs="*",
        default=[],
        help="more sides: GOMP_SPINCOUNT for the second tree",
    )
    options = parser.parse_args()
    first, second = (tree.resolve() for tree in options.trees)
    print(
        f"{os.cpu_count()} cores, load before it began: "
        f"{', '.join(f'{load:.1f}' for load in os.getloadavg())}"
    )
    print(
        "| work | side | a second: median (range) | of the first side: median (range) "
        "|\n|---|---|---|---|"
    )
    places = {"before": (first, {}), "after": (second, {})}
    places |= {
        f"after, spin {spin}": (second, {"GOMP_SPINCOUNT": str(spin)}) for spin in options.spin
    }
    met = True
    for row in options.rows:
        sides = {
            name: Worker(tree, row, environment) for name, (tree, environment) in places.items()
        }
        assert all(worker.answer() == "ready" for worker in sides.values())
        endless = [sys.executable, "-c", "while True: pass"]
        busy = [subprocess.Popen(endless) for _ in range(0 if options.idle else options.busy)]
        try:
            met &= compare(row, sides, options.turns, options.seconds) >= (
                0.98 if options.idle else 10
            )
        finally:
            for process in busy:
                process.kill()
            for worker in sides.values():
                worker.stop()
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())

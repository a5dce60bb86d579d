"""How cost grows: a training step and a prompt over their length, the engine over its texts, a
corpus over its bytes, a model's start over its parameters.

    python benchmarks/growth.py [--parts step prompt engine corpus load] [--threads 2] [--repeats 3]
    [--least 0] [--largest 1] [--cpu] [--folder FOLDER] [--plot FILE.png]

Each row is a process of its own, so its peak memory is its own. ``slope`` is the exponent between a
row and the row before it: 1 where twice as much takes twice as long. ``theory`` is that exponent of
what the config says: FLOPs of a step or a prompt, bytes read for a token, bytes of a corpus or of
weights. ``said`` is the memory that ``glassformer cost`` tells beforehand, ``rose`` how far
the process's memory rose. --cpu counts seconds of the processor, for a machine that others
use. --largest 0.25 stops each part at a quarter of its largest size. --plot
draws every part, measured and theory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = 4096
ON_CPU = "--cpu" in sys.argv
SIZES = {
    "step": [128, 256, 512, 1024, 2048, 4096, 8192],
    "prompt full": [128, 512, 2048, 8192, 32768],
    "prompt grouped": [128, 512, 2048, 8192, 32768],
    "prompt window": [128, 512, 2048, 8192, 32768],
    "engine": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "corpus": [10**6, 10**7, 10**8, 10**9],
    "load": [10, 30, 100, 300, 1000, 3000],
}
UNITS = {
    "step": "tokens of context",
    "engine": "texts",
    "corpus": "bytes",
    "load": "million parameters",
}
SHAPES = {10: (256, 8), 30: (512, 8), 100: (768, 12), 300: (1024, 22), 1000: (2048, 18)}
SHAPES[3000] = (2560, 36)  # width and depth for about so many million parameters


def llama(dim: int, depth: int, context: int, kind: str = "full", vocab: int = VOCAB) -> Any:
    """The config of a Llama-shaped decoder with heads of 64."""
    from glassformer import config as c

    heads = dim // 64
    kv_heads = max(1, heads // 4) if kind == "grouped" else heads
    rule = c.Window(256) if kind == "window" else c.Full()
    attention = c.Attention(heads, kv_heads, mask=rule)
    block = c.Block(attention, c.GatedMLP(dim * 11 // 4 // 64 * 64), c.RMSNorm())
    stack = c.Stack(depth, (block,), c.Rotary(), last_norm=c.RMSNorm())
    return c.Decoder(dim, context, c.Embed(vocab), stack, c.Head(tied=False))


def clock() -> float:
    """Seconds of the wall, or of the processor in this process and those that it waited for."""
    if not ON_CPU:
        return time.perf_counter()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def resident() -> int:
    """Bytes of this process that lie in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """The most bytes of this process that have lain in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def median_time(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        start = clock()
        work()
        seconds.append(clock() - start)
    return statistics.median(seconds)


def step(size: int, repeats: int, folder: Path) -> dict[str, float]:
    """A training step of one row in fp32."""
    import torch

    from glassformer.core.config import run
    from glassformer.core.nn import build_model
    from glassformer.core.training import train
    from glassformer.core.training.batches import Batch
    from glassformer.core.training.causal import Causal
    from glassformer.fast.training.execution import choose_execution
    from glassformer.scale.cost import cost

    config = llama(256, 4, size)
    ids = torch.randint(VOCAB, (1, size + 1), generator=torch.Generator().manual_seed(0))
    before, theory = resident(), cost(config, 1, size)
    batch, model = Batch(ids[:, :-1], ids[:, 1:]), build_model(config, seed=0)
    settings = run.Train(
        steps=10**9, batch=1, optimizer=run.AdamW(1e-3), dtype="float32", compile="no"
    )
    execution = choose_execution(model, batch, Causal(), settings)
    feed = iter(lambda: batch, None)
    steps = train(model, feed, settings=settings, execution=execution)
    seconds = median_time(lambda: next(steps), repeats)
    theory_work = theory.training_flops * size
    return {
        "seconds": seconds,
        "work": theory_work,
        "said": theory.train("fp32"),
        "rose": peak() - before,
    }


def prompt(size: int, repeats: int, folder: Path, kind: str) -> dict[str, float]:
    """A prompt in bf16, and one token after it."""
    import torch

    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.scale.cost import cost

    config = llama(512, 4, size + 64, kind)
    model = build_model(config, dtype=torch.bfloat16, seed=0).eval()
    before, theory = resident(), cost(config, 1, size)
    ids = torch.randint(VOCAB, (size,), generator=torch.Generator().manual_seed(0)).tolist()
    firsts, nexts = [], []
    for _ in range(repeats + 1):
        start = clock()
        steps = iter(glassformer.generate(model, None, ids, temperature=0, max_new=17))
        next(steps)
        firsts.append(clock() - start)
        start = clock()
        for _ in steps:
            pass
        nexts.append((clock() - start) / 16)
    return {
        "seconds": statistics.median(firsts[1:]),
        "work": theory.forward_flops * size,
        "token": statistics.median(nexts[1:]),
        "token_work": theory.weights("bf16") + theory.cache("bf16"),
        "said": theory.cache("bf16"),
        "rose": peak() - before,
    }


def engine(size: int, repeats: int, folder: Path) -> dict[str, float]:
    """Texts of 64 tokens, 32 new ones each, all at once; a new token's share of the time."""
    import random

    import torch

    from glassformer.core.generation.sample import Sampling
    from glassformer.core.nn import build_model
    from glassformer.scale.cost import cost
    from glassformer.serve.engine import Engine, Request

    config, draw = llama(512, 8, 128), random.Random(0)
    model = build_model(config, dtype=torch.bfloat16, seed=0).eval()
    before, theory = resident(), cost(config, size, 96)
    sizes: dict[str, Any] = {"max_sequences": size, "max_context": 128, "lookup": False}
    with Engine(model, **sizes) as served:

        def run() -> None:
            prompts = [[draw.randrange(VOCAB) for _ in range(64)] for _ in range(size)]
            requests = [Request(ids, sampling=Sampling(0), max_new=32) for ids in prompts]
            for handle in [served.submit(request) for request in requests]:
                for _ in handle:
                    pass

        seconds = median_time(run, repeats)
    flops = theory.forward_flops * 96 * size
    return {
        "seconds": seconds,
        "work": flops,
        "said": theory.cache("bf16"),
        "rose": peak() - before,
    }


def corpus(size: int, repeats: int, folder: Path) -> dict[str, float]:
    """A corpus of Shakespeare over and over: tokenised, opened again, and shuffled into batches."""
    from glassformer.core.training.batches import Batches
    from glassformer.formats.data import find, tokenise
    from glassformer.formats.tokenizer_files import open as open_tokenizer

    data = Path(os.environ["GLASSFORMER_DATA"])
    text = (data / "tinyshakespeare/input.txt").read_bytes()
    path = folder / f"{size}.txt"
    with path.open("wb") as file:
        for copy in range(-(-size // len(text))):
            file.write(b"%d " % copy + text[: size - copy * len(text)])
    tokenizer, cache = open_tokenizer(data / "tok-gpt2"), folder / f"shards-{size}"
    before, start = resident(), clock()
    shards = tokenise(find(path), tokenizer, cache=cache)
    seconds = clock() - start
    opened = median_time(lambda: tokenise(find(path), tokenizer, cache=cache), 1)
    batches = Batches(shards, 16, 64)
    batch_seconds = median_time(lambda: [next(batches) for _ in range(100)], repeats) / 100
    start = clock()
    Batches(shards, 16, 64)
    order_seconds = clock() - start
    return {
        "seconds": seconds,
        "work": float(size),
        "opened": opened,
        "order": order_seconds,
        "batch": batch_seconds,
        "rose": peak() - before,
    }


def load(size: int, repeats: int, folder: Path) -> dict[str, float]:
    """From a process's start to the first token of a saved bf16 model, and what it takes in
    memory."""
    import torch

    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.scale.cost import cost

    config, target = llama(*SHAPES[size], 128, vocab=32_000), folder / f"model-{size}"
    if not target.exists():
        glassformer.save(build_model(config, dtype=torch.bfloat16, seed=0), target)
    script = (
        "import glassformer, resource\n"
        f"model, _ = glassformer.load({str(target)!r})\n"
        "next(iter(glassformer.generate(model, None, list(range(16)), temperature=0)))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    memory: list[int] = []

    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        memory.append(int(done.stdout))

    seconds = median_time(run, repeats)
    theory = cost(config, 1, 17)
    return {
        "seconds": seconds,
        "work": theory.weights("bf16"),
        "said": theory.run("bf16"),
        "rose": statistics.median(memory),
    }


def measure(name: str, size: int, repeats: int, folder: Path) -> dict[str, float]:
    """One row, in this process."""
    component, _, kind = name.partition(" ")
    function: Any = {"step": step, "engine": engine, "corpus": corpus, "load": load}.get(component)
    return function(size, repeats, folder) if function else prompt(size, repeats, folder, kind)


def slope(rows: list[dict[str, float]], index: int, key: str) -> str:
    """The exponent between two rows, empty for the first."""
    if not index:
        return ""
    low, high = rows[index - 1], rows[index]
    return f"{math.log(high[key] / low[key]) / math.log(high['size'] / low['size']):.2f}"


EXTRA = {  # columns of some parts: key, title, unit's factor
    "token": ("a token, ms", 1e3),
    "opened": ("opened again, s", 1.0),
    "order": ("shuffled, ms", 1e3),
    "batch": ("a batch, ms", 1e3),
    "said": ("said, MB", 1e-6),
    "rose": ("rose, MB", 1e-6),
}


def table(name: str, rows: list[dict[str, float]]) -> str:
    """A part's rows as Markdown."""
    keys = [key for key in EXTRA if key in rows[0]]
    titles = [UNITS.get(name, "tokens of prompt"), "seconds", "slope", "theory"]
    for key in keys:
        titles += [EXTRA[key][0], *(["slope", "theory"] if key == "token" else [])]
    lines = [f"**{name}**", "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for index, row in enumerate(rows):
        cells = [f"{row['size']:,.0f}", f"{row['seconds']:.4g}"]
        cells += [slope(rows, index, "seconds"), slope(rows, index, "work")]
        for key in keys:
            cells.append(f"{row[key] * EXTRA[key][1]:,.4g}")
            if key == "token":
                cells += [slope(rows, index, "token"), slope(rows, index, "token_work")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Every part on logarithmic axes: measured as points, theory as a line through the last
    point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(3, len(results))
    figure, axes = pyplot.subplots(
        -(-len(results) // columns),
        columns,
        figsize=(4.2 * columns, 3.2 * -(-len(results) // columns)),
        squeeze=False,
        layout="constrained",
    )
    for axis, (name, rows) in zip(axes.flat, results.items(), strict=False):
        sizes = [row["size"] for row in rows]
        factor = rows[-1]["seconds"] / rows[-1]["work"]
        axis.loglog(
            sizes, [row["work"] * factor for row in rows], "--", color="#999", label="theory"
        )
        axis.loglog(sizes, [row["seconds"] for row in rows], "o-", label="measured")
        axis.set(title=name, xlabel=UNITS.get(name, "tokens of prompt"), ylabel="seconds")
        axis.legend()
    for axis in axes.flat[len(results) :]:
        axis.remove()
    figure.savefig(path, dpi=110)


def main() -> int:
    """All parts, each size in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = list(dict.fromkeys(name.split()[0] for name in SIZES))
    parser.add_argument("--parts", nargs="+", choices=choices, default=choices)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.0, help="share of the largest size")
    parser.add_argument("--largest", type=float, default=1.0, help="share of the largest size")
    parser.add_argument("--cpu", action="store_true", help="count seconds of the processor")
    parser.add_argument("--folder", type=Path, help="keeps models and corpora for the next time")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        import torch

        torch.set_num_threads(args.threads)
        result = measure(args.row[0], int(args.row[1]), args.repeats, args.folder)
        print(json.dumps({"size": int(args.row[1]), **result}))
        return 0
    os.environ.setdefault("GLASSFORMER_DATA", "../shared/data")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, sizes in SIZES.items():
            if name.split()[0] not in args.parts:
                continue
            for size in sizes:
                if not args.least * sizes[-1] <= size <= args.largest * sizes[-1]:
                    continue
                command = [sys.executable, __file__, "--row", name, str(size)]
                command += ["--threads", str(args.threads), "--repeats", str(args.repeats)]
                command += ["--folder", str(folder), *(["--cpu"] if args.cpu else [])]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    print(f"{name} at {size:,} failed.", file=sys.stderr)
                    return 1
                results.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{name} {size:,}: {results[name][-1]}", file=sys.stderr, flush=True)
            print(table(name, results[name]), flush=True)
    if args.plot:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Seconds a training step, time to the first one and peak memory beside nanoGPT's, on the same
batches of real text.

    python benchmarks/train.py [--nanogpt FOLDER] [--shape 124m | 10m] [--rounds 5] [--threads 2]
    [--clock cpu]

124m is GPT-2's shape (batch 4 x 256, its vocabulary padded as nanoGPT pads it), 10m nanoGPT's
character model (6 layers, 384 wide, batch 64 x 256); AdamW and clipping at 1 in both. Every
contender is a process of its own that stays up; they take turns, a few steps each, so that all meet
the same weather. Ours picks its number format itself, as `glassformer train` does. --curves STEPS
compares our bf16's losses with our fp32's instead. On a busy machine use --threads 1 --clock cpu:
the processor's seconds are counted, and nobody waits for another thread. Exit 1 when ours is not
ahead of nanoGPT's best by 1.5 times, or holds more memory than its leanest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data"))
SHAPES = {  # layers, heads, width, vocabulary, context, batch, steps a turn
    "124m": (12, 12, 768, 50304, 256, 4, 1),
    "10m": (6, 6, 384, 65, 256, 64, 1),
    "small": (4, 4, 128, 65, 64, 12, 50),
}
RATE, BETAS, DECAY, CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0


def rows(path: str, shape: str) -> Iterator[Any]:
    """(tokens, targets) of one step after another, the same for everyone."""
    import torch

    *_, context, batch, _ = SHAPES[shape]
    ids, draw = np.fromfile(path, np.uint16).astype(np.int64), np.random.default_rng(0)
    while True:
        starts = draw.integers(len(ids) - context - 1, size=batch)
        piece = torch.from_numpy(np.stack([ids[s : s + context + 1] for s in starts]))
        yield piece[:, :-1].contiguous(), piece[:, 1:].contiguous()


def our_training(shape: str, batches: Iterator[Any], dtype: str) -> Iterator[float]:
    """Our training loop; ``dtype`` "auto" leaves the choice to it."""
    from glassformer import config
    from glassformer.core.config import run
    from glassformer.core.nn import build_model
    from glassformer.core.training import train
    from glassformer.core.training.batches import Batch
    from glassformer.core.training.causal import Causal
    from glassformer.fast.training.execution import choose_execution

    depth, heads, dim, vocab, context, batch, _ = SHAPES[shape]
    norm = config.LayerNorm(bias=False)
    block = config.Block(config.Attention(heads), config.MLP(4 * dim, "gelu"), norm)
    stack = config.Stack(depth, (block,), config.Learned(context), last_norm=norm)
    model = build_model(config.Decoder(dim, context, config.Embed(vocab), stack), seed=0)
    adamw = run.AdamW(RATE, BETAS, weight_decay=DECAY)
    settings = run.Train(
        steps=10**9,
        batch=batch,
        optimizer=adamw,
        schedule=run.Constant(),
        clip=CLIP,
        dtype=dtype,
        compile="no",
    )
    feed = (Batch(*pair) for pair in batches)
    plan = choose_execution(model, next(feed), Causal(), settings)
    print(json.dumps({"said": plan.why}), flush=True)
    return (step.loss for step in train(model, feed, settings=settings, execution=plan))


def nanogpt(shape: str, batches: Iterator[Any], kind: str, folder: Path) -> Iterator[float]:
    """nanoGPT's model and optimizer in the loop of its train.py, without what it logs and
    evaluates."""
    import torch

    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig

    depth, heads, dim, vocab, context, _, _ = SHAPES[shape]
    sys.stdout = sys.stderr  # it prints
    torch.manual_seed(0)
    plain = GPT(GPTConfig(context, vocab, depth, heads, dim, dropout=0.0, bias=False))
    optimizer = plain.configure_optimizers(DECAY, RATE, BETAS, "cpu")
    sys.stdout = sys.__stdout__
    model = torch.compile(plain) if kind.endswith("compiled") else plain
    next(batches)
    for tokens, targets in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind.startswith("bf16")):
            loss = model(tokens, targets)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def worker(args: argparse.Namespace) -> None:
    """One contender: reads how many steps to do, writes what they took; the first line is the time
    since its start."""
    import torch

    torch.set_num_threads(args.threads)
    who, _, kind = args.worker.partition(" ")
    batches = rows(args.ids, args.shape)
    steps = (
        our_training(args.shape, batches, kind)
        if who == "ours"
        else nanogpt(args.shape, batches, kind, args.nanogpt)
    )
    next(steps)
    print(json.dumps({"first": time.time() - args.begun}), flush=True)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            started = clock()
            losses.append(next(steps))
            seconds.append(clock() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "losses": losses, "peak": peak}), flush=True)


class Contender:
    """A worker process and what it has said so far."""

    def __init__(self, name: str, args: argparse.Namespace, ids: str) -> None:
        command = [sys.executable, __file__, "--worker", name, "--shape", args.shape, "--ids", ids]
        command += [
            "--threads",
            str(args.threads),
            "--clock",
            args.clock,
            "--begun",
            str(time.time()),
        ]
        command += ["--nanogpt", str(args.nanogpt)] if args.nanogpt else []
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.name, self.seconds, self.losses, self.peak = name, [], [], 0.0
        answer = self.answer()
        if "said" in answer:
            print(f"  {name}: {answer['said']}", flush=True)
            answer = self.answer()
        self.first: float = answer["first"]
        print(f"  {name}: first step after {self.first:.1f} s", flush=True)

    def answer(self) -> dict[str, Any]:
        """The next line it writes."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"{self.name} failed.")
        data: dict[str, Any] = json.loads(line)
        return data

    def turn(self, steps: int, is_measured: bool = True) -> None:
        """Let it do some steps."""
        assert self.process.stdin
        print(steps, file=self.process.stdin, flush=True)
        answer = self.answer()
        self.losses += answer["losses"]
        self.peak = answer["peak"]
        if is_measured:
            self.seconds += answer["seconds"]


def prepare(shape: str, folder: str) -> str:
    """A file of 16-bit ids: Shakespeare in GPT-2's tokens, or in characters."""
    from glassformer.formats.data import find as find_corpus
    from glassformer.formats.tokenizer_files import open as open_tokenizer

    os.environ.setdefault("GLASSFORMER_DATA", str(DATA))
    words = find_corpus("shakespeare").path.read_text()
    if SHAPES[shape][3] == 65:
        ids = np.unique(np.array(list(words)), return_inverse=True)[1]
    else:
        ids = np.array(open_tokenizer(DATA / "tok-gpt2").encode(words))
    path = Path(folder) / "ids.bin"
    ids.astype(np.uint16).tofile(path)
    return str(path)


def curves(args: argparse.Namespace, ids: str) -> int:
    """Our bf16 and our fp32 from the same start on the same batches: two curves within each other's
    noise."""
    low, full = (Contender(f"ours {dtype}", args, ids) for dtype in ("bfloat16", "float32"))
    for contender in (low, full):
        contender.turn(args.curves)
    apart = [a - b for a, b in zip(low.losses, full.losses, strict=True)]
    for index in range(0, args.curves, max(1, args.curves // 10)):
        print(f"  step {index + 2:4d}  bf16 {low.losses[index]:.4f}  fp32 {full.losses[index]:.4f}")
    jumps = [abs(a - b) for a, b in zip(full.losses[1:], full.losses[:-1], strict=True)]
    mean, noise = statistics.mean(apart), statistics.median(jumps)
    print(f"bf16 less fp32: mean {mean:+.4f}, at most {max(map(abs, apart)):.4f}; ", end="")
    print(f"fp32 moves {noise:.4f} from one step to the next (median)")
    return 0 if abs(mean) < 0.1 * noise else 1


def compare(args: argparse.Namespace, ids: str) -> int:
    """Turns, medians, ratios."""
    tokens = SHAPES[args.shape][4] * SHAPES[args.shape][5]
    names = ["ours auto"]
    if args.nanogpt:
        names += [f"nanoGPT {kind}" for kind in args.peers.split(",")]
    contenders = [Contender(name, args, ids) for name in names]
    for turn in range(args.rounds + 1):
        for contender in contenders:
            contender.turn(SHAPES[args.shape][6], is_measured=turn > 0)
    local, *reference = contenders
    print(
        f"\n{'':24}{'s/step':>9}{'range':>18}{'tokens/s':>10}{'first step':>12}{'peak MB':>9}{'ours faster':>13}"
    )
    for item in contenders:
        median = statistics.median(item.seconds)
        ratio = f"{statistics.median(a / b for a, b in zip(item.seconds, local.seconds, strict=True)):.2f}"
        around = f"{min(item.seconds):.3f} - {max(item.seconds):.3f}"
        start = f"{item.first:.1f} s"
        print(
            f"{item.name:24}{median:9.3f}{around:>18}{tokens / median:10.0f}{start:>12}{item.peak:9.0f}{ratio:>13}"
        )
    if not reference:
        return 0
    best = min(reference, key=lambda item: statistics.median(item.seconds))
    ahead = statistics.median(a / b for a, b in zip(best.seconds, local.seconds, strict=True))
    lean = min(item.peak for item in reference)
    print(f"\nnanoGPT's best is {best.name}: ours is {ahead:.2f} times faster, ", end="")
    print(f"with {local.peak / lean:.2f} of the memory of its leanest")
    return 0 if ahead >= 1.5 and local.peak < lean else 1


def main() -> int:
    """Parse, prepare, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--shape", choices=SHAPES, default="124m")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--peers",
        default="fp32,bf16,bf16 compiled",
        help="which of nanoGPT's ways to measure (all)",
    )
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine that others use"
    )
    parser.add_argument(
        "--curves", type=int, default=0, help="compare bf16 with fp32 over so many steps"
    )
    for hidden, kind in (("--worker", str), ("--ids", str), ("--begun", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ids = prepare(args.shape, folder)
        return curves(args, ids) if args.curves else compare(args, ids)


if __name__ == "__main__":
    raise SystemExit(main())

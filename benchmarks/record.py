"""Character-level Shakespeare as low as two CPU cores get: docs/results.md.

    python benchmarks/record.py [--budgets 45 180 600] [--seeds 5] [--out out/record]

Each budget is one command, `glassformer train runs/shakespeare-best.toml` with the options below, for
each seed; its seconds are those of the whole process. The losses are of the last tenth of the text,
which is nanoGPT's validation split: its first half, on which the settings were chosen, its second
half, and the whole. "windows" reads the characters in windows of the context that stand side by
side. "moving" moves the window by half of it, which is what `glassformer eval` does. "nanoGPT's" is
its own estimate: the mean of random windows, here 50 batches of 64. What is finished in --out is
not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import glassformer
from glassformer.formats.data import find as find_corpus

RUN = Path(__file__).parents[1] / "runs" / "shakespeare-best.toml"
OPTIONS = {
    45: "--dim 128 --decoder.pattern.attention.heads 2 --decoder.pattern.feedforward.hidden 344 "
    "--model.context 128 --batch 16 --steps 920 --train.optimizer.lr 0.015 "
    "--train.optimizer.weight-decay 0.1",
    180: "",
    600: "--dim 256 --decoder.depth 6 --decoder.pattern.attention.heads 8 "
    "--decoder.pattern.feedforward.hidden 688 --steps 3000 --train.optimizer.lr 0.01 "
    "--train.optimizer.weight-decay 0.6",
}


def train(options: str, seed: int, out: Path) -> float:
    """Seconds of the whole training process."""
    seconds = out.with_suffix(".seconds")
    if not seconds.exists():
        command = [sys.executable, "-m", "glassformer", "train", str(RUN), "--out", str(out)]
        start = time.perf_counter()
        command += [*options.split(), "--train.seed", str(seed)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        seconds.write_text(str(time.perf_counter() - start))
    return float(seconds.read_text())


def estimate(model: torch.nn.Module, ids: torch.Tensor, context: int, batches: int) -> float:
    """nanoGPT's estimate of the loss: random windows, batches of 64."""
    draw, losses = torch.Generator().manual_seed(1337), []
    for _ in range(batches):
        starts = torch.randint(len(ids) - context, (64, 1), generator=draw)
        tokens = ids[starts + torch.arange(context + 1)]
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits
        losses.append(cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).item())
    return statistics.mean(losses)


def losses(folder: Path, texts: dict[str, Path], batches: int) -> dict[str, float]:
    """The losses of a trained model, each by the name of its column."""
    model, tokenizer = glassformer.load(folder)
    context = model.config.context
    strides = {"windows": context, "moving": context // 2}
    figures = {
        f"{part}, {name}": glassformer.evaluate(model, tokenizer, str(file), stride=stride)["loss"]
        for part, file in texts.items()
        for name, stride in strides.items()
    }
    ids = torch.tensor(tokenizer.encode(texts["whole"].read_text()))
    return figures | {"nanoGPT's": estimate(model, ids, context, batches)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=list(OPTIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="train so many steps only: a trial of the script")
    parser.add_argument("--windows", type=int, default=50, help="batches of nanoGPT's estimate")
    parser.add_argument("--out", type=Path, default=Path("out/record"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    text = find_corpus("shakespeare").path.read_text()
    held_out = text[int(0.9 * len(text)) :]
    half = len(held_out) // 2
    parts = {"first": held_out[:half], "second": held_out[half:], "whole": held_out}
    texts = {name: args.out / f"{name}.txt" for name in parts}
    for name, part in parts.items():
        texts[name].write_text(part)
    for budget in args.budgets:
        rows = []
        for seed in range(args.seeds):
            folder = args.out / f"{budget}-{seed}"
            options = OPTIONS[budget] + (f" --steps {args.steps}" if args.steps else "")
            row = {"seconds": train(options, seed, folder)} | losses(folder, texts, args.windows)
            rows.append(row)
            print(json.dumps({"budget": budget, "seed": seed} | row), flush=True)
        for name in rows[0]:
            column = sorted(row[name] for row in rows)
            middle = statistics.median(column)
            print(f"{budget} s  {name}: {middle:.4f} ({column[0]:.4f} to {column[-1]:.4f})")


if __name__ == "__main__":
    main()

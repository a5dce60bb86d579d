"""What warm-up is for: post-norm and pre-norm at several rates, with and without it: the numbers of
docs/warmup.json.

    python benchmarks/warmup.py [--write] [--seeds N] [--steps N] [--depth N] [--rates R ...]

Each run trains a decoder of the library's blocks, as the 2017 paper has them but for where the norm
stands (LayerNorm, relu, plain start), to say again the token that stood three places before, in
rows of 24 random tokens; one thread. Steps, batches and seeds are the same for all. --write keeps
the figures for page 5 of the course.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import config as c
from glassformer.core.nn import build_model

KEPT = Path(__file__).parent.parent / "docs" / "warmup.json"
VOCABULARY, LENGTH, BATCH, WIDTH = 16, 24, 16, 64


def three_before(seed: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Rows with targets: the token three places before, -1 where there is none."""
    draws = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=draws)
        return rows, torch.cat([torch.full((BATCH, 3), -1), rows[:, :-3]], 1)

    return draw


def model(place: Any, depth: int, seed: int) -> Any:
    """A decoder of ``depth`` blocks, its norms where ``place`` says."""
    block = c.Block(c.Attention(4), c.MLP(4 * WIDTH, "relu", bias=True), c.LayerNorm(), place)
    last = c.LayerNorm() if place == "pre" else None
    stack = c.Stack(depth, (block,), c.Learned(LENGTH), last_norm=last)
    start = c.Init(std=None, embed_std=1.0, residual="plain", head_std=WIDTH**-0.5)
    return build_model(
        c.Decoder(WIDTH, LENGTH, c.Embed(VOCABULARY), stack, c.Head(tied=False), start), seed=seed
    )


def losses(
    place: str, depth: int, rate: float, warmup: int, seed: int, steps: int
) -> Iterator[float]:
    """The loss of each step of Adam; the rate grows evenly to ``rate`` over ``warmup`` steps and
    stays there."""
    single_model, draw = model(place, depth, seed), three_before(seed)
    optimizer = torch.optim.Adam(single_model.parameters(), lr=rate, betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / warmup if warmup else 1.0)
        tokens, targets = draw()
        loss = torch.nn.functional.cross_entropy(
            single_model(tokens).logits.flatten(0, 1), targets.flatten(), ignore_index=-1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def main() -> None:
    """Train all, print a line for each, keep them where asked."""
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--write", action="store_true")
    words.add_argument("--seeds", type=int, default=5)
    words.add_argument("--steps", type=int, default=400)
    words.add_argument("--depth", type=int, default=6)
    words.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3])
    args = words.parse_args()
    torch.set_num_threads(1)
    runs = []
    for rate in args.rates:
        for place, warmup in (("pre", 0), ("post", 0), ("post", args.steps // 2)):
            lines = [
                list(losses(place, args.depth, rate, warmup, seed, args.steps))
                for seed in range(args.seeds)
            ]
            bounds = [sum(line[-20:]) / 20 for line in lines]
            print(
                f"{place}-norm, rate {rate:g}, warm-up {warmup}:",
                *(f"{end:.3f}" for end in bounds),
                flush=True,
            )
            curve = [
                [round(sum(line[at - 20 : at]) / 20, 4) for at in range(20, args.steps + 1, 20)]
                for line in lines
            ]
            fields = {
                "place": place,
                "rate": rate,
                "warmup": warmup,
                "ends": [round(end, 4) for end in bounds],
            }
            runs.append(fields | {"every": 20, "curves": curve})
    if args.write:
        second_args = "".join(
            f" --{name} {value}"
            for name, value in (
                ("seeds", args.seeds),
                ("steps", args.steps),
                ("depth", args.depth),
            )
        )
        second_args += " --rates " + " ".join(map(str, args.rates))
        saved = {
            "command": f"python benchmarks/warmup.py --write{second_args}",
            "date": str(date.today()),
            "machine": platform.processor() or platform.machine(),
        }
        KEPT.write_text(
            json.dumps(saved | {"depth": args.depth, "steps": args.steps, "runs": runs}) + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()

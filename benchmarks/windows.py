"""What sliding windows save: the pages of keys and values that a long text holds at most, in an
engine.

    python benchmarks/windows.py [--tokens 8000] [--window 1024] [--full 6]

A decoder of 12 small layers, of which each ``--full``-th sees all of the text (0: none does) and
the others a window.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from glassformer import config
from glassformer.core.generation import Sampling
from glassformer.core.nn import build_model
from glassformer.serve.engine import Engine, Request
from glassformer.serve.engine.scheduler import PagePool

LAYERS = 12


def watch(pool: PagePool, most: dict[PagePool, int]) -> None:
    """Have the most pages that are in use at once written down."""
    take = pool.take

    def taking() -> int:
        page = take()
        most[pool] = max(most.get(pool, 0), pool.in_use)
        return page

    pool.take = taking  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tokens", 8000), ("window", 1024), ("full", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    blocks = []
    for layer in range(1, LAYERS + 1):
        rule: Any = (
            config.Causal() if args.full and layer % args.full == 0 else config.Window(args.window)
        )
        blocks.append(config.Block(config.Attention(4, 2, mask=rule), config.GatedMLP(128)))
    stack = config.Stack(LAYERS, tuple(blocks), config.Rotary())
    model = build_model(config.Decoder(64, args.tokens + 64, config.Embed(512), stack)).eval()
    for step in (512, 128):
        with Engine(model, max_sequences=8, step_tokens=step, lookup=False) as engine:
            most = dict[PagePool, int]()
            for pool, _ in engine.memory_plan.pools:
                watch(pool, most)
            prompt = torch.randint(512, (args.tokens,)).tolist()
            engine.submit(
                Request(prompt, max_new=32, sampling=Sampling(0), stop_tokens=())
            ).result()
            total = sum(most[pool] * size for pool, size in engine.memory_plan.pools)
            full = -(-(args.tokens + 31) // 32) * sum(engine.memory_plan.page_bytes)
            print(f"{step} tokens a step: {engine.memory_plan}")
            print(
                f"  at most {[*most.values()]} pages, {total / 2**20:.1f} MiB; without windows "
                f"{full / 2**20:.1f} MiB"
            )


if __name__ == "__main__":
    main()

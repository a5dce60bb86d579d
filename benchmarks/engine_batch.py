"""The engine beside generation's batch: even and ragged prompts with grouped heads, tokens per
second; alternating.

    python benchmarks/engine_batch.py [--rows 32] [--prompt 128] [--tokens 32] [--threads 1]
    [--repeats 3] [--dim 512]
        [--heads 8] [--kv-heads 2] [--layers 8] [--dtype bfloat16] [--processor]

A random Llama shape with grouped heads. "even" prompts have all the same length, "ragged"
ones from 35 tokens to that. Greedy tokens of both are compared (they may part where two tokens are
equally likely to a rounding). The engine may read all prompts in one step here, so that decode is
counted from the first token on for both.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (
        ("rows", 32),
        ("prompt", 128),
        ("tokens", 32),
        ("threads", 1),
        ("repeats", 3),
        ("dim", 512),
    ):
        read.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("heads", 8), ("kv-heads", 2), ("layers", 8)):
        read.add_argument(f"--{name}", type=int, default=default)
    read.add_argument("--dtype", default="bfloat16")
    said = "count the processor's seconds, on a machine that others use (with one thread)"
    read.add_argument("--processor", action="store_true", help=said)
    given = read.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(given.threads))
    import torch

    from glassformer import config as c
    from glassformer import generate
    from glassformer.engine import Engine, Request
    from glassformer.generation.sample import Sampling
    from glassformer.nn import build_model, kernels

    torch.set_num_threads(given.threads)
    clock = time.process_time if given.processor else time.perf_counter
    block = c.Block(
        c.Attention(given.heads, given.kv_heads), c.GatedMLP(given.dim * 11 // 4 // 32 * 32)
    )
    stack = c.Stack(given.layers, (block,), c.Rotary(), last_norm=c.RMSNorm())
    cfg = c.Decoder(given.dim, 2048, c.Embed(32000), stack, c.Head(tied=False))
    model = build_model(cfg, dtype=getattr(torch, given.dtype), seed=1).eval()
    lot = random.Random(0)
    lengths = {"even": [given.prompt] * given.rows}
    lengths["ragged"] = [
        lot.randint(min(35, given.prompt), given.prompt) for _ in range(given.rows)
    ]
    sizes = f"{given.rows} rows, {given.tokens} new tokens, {given.dtype}"
    print(f"{kernels.path()}, {given.threads} threads, {sizes}, {clock.__name__}")
    print(
        "| prompts | engine tokens/s | generation tokens/s | ratio | engine decode | generation "
        "decode | ratio | same |"
    )
    sizes_of = {"max_sequences": given.rows, "max_context": given.prompt + given.tokens}
    with Engine(model, **sizes_of, step_tokens=given.rows * given.prompt, lookup=False) as engine:
        print(engine.memory_plan, file=sys.stderr)
        for name, sizes in lengths.items():
            times: dict[str, list[tuple[float, float]]] = {"engine": [], "generation": []}
            for turn in range(given.repeats + 1):
                # new ones: no prefix hits
                prompts = [[lot.randrange(32000) for _ in range(size)] for size in sizes]

                def by_engine(prompts: list[list[int]] = prompts) -> tuple[list[list[int]], float]:
                    requests = [
                        Request(one, sampling=Sampling(0), max_new=given.tokens) for one in prompts
                    ]
                    handles = [engine.submit(one) for one in requests]
                    next(iter(handles[-1]))
                    first = clock()
                    found = [[event.token for event in handle] for handle in handles]
                    return found, clock() - first

                def by_generation(
                    prompts: list[list[int]] = prompts,
                ) -> tuple[list[list[int]], float]:
                    told = generate(model, None, prompts, temperature=0, max_new=given.tokens)
                    steps = iter(told)
                    for _ in prompts:
                        next(steps)
                    first = clock()
                    told.run()
                    return told.tokens, clock() - first

                answers = []
                ways = [("engine", by_engine), ("generation", by_generation)]
                for who, way in ways if turn % 2 else reversed(ways):
                    start = clock()
                    found, decode = way()
                    if turn:
                        times[who].append((clock() - start, decode))
                    answers.append(found)
                pairs = zip(*(answers if turn % 2 else reversed(answers)), strict=True)
                same = sum(a[-5:] == b[-5:] for a, b in pairs)
            work, decoded = given.rows * given.tokens, given.rows * (given.tokens - 1)
            whole, decode = (
                {who: statistics.median(one[side] for one in times[who]) for who in times}
                for side in (0, 1)
            )
            print(
                f"| {name} | {work / whole['engine']:.0f} | {work / whole['generation']:.0f} "
                f"| {whole['generation'] / whole['engine']:.2f} | {decoded / decode['engine']:.0f} "
                f"| {decoded / decode['generation']:.0f} | "
                f"{decode['generation'] / decode['engine']:.2f} "
                f"| {same}/{given.rows} |"
            )


if __name__ == "__main__":
    main()

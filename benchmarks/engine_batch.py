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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (
        ("rows", 32),
        ("prompt", 128),
        ("tokens", 32),
        ("threads", 1),
        ("repeats", 3),
        ("dim", 512),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("heads", 8), ("kv-heads", 2), ("layers", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="bfloat16")
    message = "count the processor's seconds, on a machine that others use (with one thread)"
    parser.add_argument("--processor", action="store_true", help=message)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    import torch

    from glassformer import config as c
    from glassformer import generate
    from glassformer.core.generation.sample import Sampling
    from glassformer.core.nn import build_model
    from glassformer.fast import kernels
    from glassformer.serve.engine import Engine, Request

    torch.set_num_threads(args.threads)
    clock = time.process_time if args.processor else time.perf_counter
    block = c.Block(
        c.Attention(args.heads, args.kv_heads), c.GatedMLP(args.dim * 11 // 4 // 32 * 32)
    )
    stack = c.Stack(args.layers, (block,), c.Rotary(), last_norm=c.RMSNorm())
    cfg = c.Decoder(args.dim, 2048, c.Embed(32000), stack, c.Head(tied=False))
    model = build_model(cfg, dtype=getattr(torch, args.dtype), seed=1).eval()
    lot = random.Random(0)
    lengths = {"even": [args.prompt] * args.rows}
    lengths["ragged"] = [lot.randint(min(35, args.prompt), args.prompt) for _ in range(args.rows)]
    sizes = f"{args.rows} rows, {args.tokens} new tokens, {args.dtype}"
    print(f"{kernels.path()}, {args.threads} threads, {sizes}, {clock.__name__}")
    print(
        "| prompts | engine tokens/s | generation tokens/s | ratio | engine decode | generation "
        "decode | ratio | same |"
    )
    sizes_of = {"max_sequences": args.rows, "max_context": args.prompt + args.tokens}
    with Engine(model, **sizes_of, step_tokens=args.rows * args.prompt, lookup=False) as engine:
        print(engine.memory_plan, file=sys.stderr)
        for name, sizes in lengths.items():
            times: dict[str, list[tuple[float, float]]] = {"engine": [], "generation": []}
            for turn in range(args.repeats + 1):
                # new ones: no prefix hits
                prompts = [[lot.randrange(32000) for _ in range(size)] for size in sizes]

                def by_engine(prompts: list[list[int]] = prompts) -> tuple[list[list[int]], float]:
                    requests = [
                        Request(prompt, sampling=Sampling(0), max_new=args.tokens)
                        for prompt in prompts
                    ]
                    handles = [engine.submit(request) for request in requests]
                    next(iter(handles[-1]))
                    first = clock()
                    result = [[event.token for event in handle] for handle in handles]
                    return result, clock() - first

                def by_generation(
                    prompts: list[list[int]] = prompts,
                ) -> tuple[list[list[int]], float]:
                    output = generate(model, None, prompts, temperature=0, max_new=args.tokens)
                    steps = iter(output)
                    for _ in prompts:
                        next(steps)
                    first = clock()
                    output.run()
                    return output.tokens, clock() - first

                answers = []
                variants = [("engine", by_engine), ("generation", by_generation)]
                for who, variant in variants if turn % 2 else reversed(variants):
                    start = clock()
                    result, decode = variant()
                    if turn:
                        times[who].append((clock() - start, decode))
                    answers.append(result)
                pairs = zip(*(answers if turn % 2 else reversed(answers)), strict=True)
                total = sum(a[-5:] == b[-5:] for a, b in pairs)
            work, decoded = args.rows * args.tokens, args.rows * (args.tokens - 1)
            full, decode = (
                {who: statistics.median(item[side] for item in times[who]) for who in times}
                for side in (0, 1)
            )
            print(
                f"| {name} | {work / full['engine']:.0f} | {work / full['generation']:.0f} "
                f"| {full['generation'] / full['engine']:.2f} | {decoded / decode['engine']:.0f} "
                f"| {decoded / decode['generation']:.0f} | "
                f"{decode['generation'] / decode['engine']:.2f} "
                f"| {total}/{args.rows} |"
            )


if __name__ == "__main__":
    main()

"""Whether training computes the sampler's log-probabilities, and what that costs.

    python benchmarks/rollout.py [--dtype bfloat16] [--dim 256] [--depth 4] [--prompts 8] [--group 8]

Draws a group of continuations of each prompt, then computes their log-probabilities as a training step does,
with the sampler's order of sums and without, in turns; prints equal bits, extremes of the ratio, and
the median time of forward and backward. Freed memory is kept, as in a run.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.fast.training.allocator import keep_freed_memory
from glassformer.serve.rollouts import Sampler


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    for name, number in {
        "dim": 256,
        "depth": 4,
        "vocab": 4096,
        "prompts": 8,
        "group": 8,
        "prompt": 64,
        "new": 64,
        "repeats": 7,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--experts", type=int, default=0, help="a mixture of so many; 0: dense")
    args = parser.parse_args()
    keep_freed_memory()
    expert = c.GatedMLP(args.dim * 3)
    feedforward = c.MoE(args.experts, 2, expert) if args.experts else expert
    heads = args.dim // 64
    block = c.Block(c.Attention(heads, max(1, heads // 2)), feedforward)
    stack = c.Stack(args.depth, (block,), c.Rotary(), last_norm=c.RMSNorm())
    context = args.prompt + args.new
    shape = c.Decoder(args.dim, context, c.Embed(args.vocab), stack, c.Head(tied=False))
    model = build_model(shape, seed=0).eval().to(getattr(torch, args.dtype))
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(args.vocab, (args.prompts, args.prompt), generator=draw).tolist()
    sampler = Sampler(model, None, context)
    groups = sampler.draw(prompts, args.group, args.new, range(args.prompts))
    pairs = [(p, done) for p, group in zip(prompts, groups, strict=True) for done in group]
    texts = [[*prompt, *done.tokens] for prompt, done in pairs]
    since = [len(prompt) for prompt, _ in pairs]
    drawn = torch.tensor([log for _, done in pairs for log in done.logprobs])
    print(f"{args.dtype}, {len(texts)} texts of {context} tokens, {len(drawn):,} drawn")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * args.repeats + 2):
        exact = number % 2 == 0
        start = time.perf_counter()
        logs, _ = sampler.score(model, texts, since, exact)
        ratio = (logs - drawn).exp()
        ratio.sum().backward()
        model.zero_grad()
        if number < 2:
            equal = int((logs == drawn).sum())
            low, high = map(float, ratio.detach().aminmax())
            name = "on " if exact else "off"
            print(
                f"switch {name}: {equal:,} of {len(drawn):,} equal in bits, ratio {low:.9g} to {high:.9g}"
            )
        else:
            seconds[exact].append(time.perf_counter() - start)
    on, off = (statistics.median(seconds[exact]) for exact in (True, False))
    print(f"forward and backward: on {on:.3f} s, off {off:.3f} s, {on / off:.2f} times")


if __name__ == "__main__":
    main()

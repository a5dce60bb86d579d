"""Time and peak memory of the logit lens on a model of GPT-2's 124M shape with random weights, on a
CPU.

    python benchmarks/sight_lens.py [--lengths 12 128 512] [--repeats 5] [--all] [--threads 1]
    [--beside]

Each length in a process of its own: the lens of the last 16 positions (--all: of every one), one
token tracked, at all 13 depths; one call to warm up, then the median and range of the repeats in
seconds of the processor, beside the model's own pass with the last logits, and how far the
process's memory rose above what the model and the warm pass had taken. --beside does the same with
TransformerLens where it is installed: the accumulated_resid of its cache, at the same columns,
through its last norm and unembedding.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Each length by itself."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lengths", type=int, nargs="+", default=[12, 128, 512])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--all", action="store_true")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--beside", action="store_true")
    options.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one is not None:
        measure(args)
        return
    print(
        "tokens  columns  lens, s: median (range)        pass, s: median     lens / pass   "
        "memory above the model, MiB"
    )
    for length in args.lengths:
        words = [sys.executable, __file__, "--one", str(length), "--repeats", str(args.repeats)]
        words += ["--threads", str(args.threads), *(["--all"] if args.all else [])]
        words += ["--beside"] if args.beside else []
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(args.threads),
            "MKL_NUM_THREADS": str(args.threads),
        }
        subprocess.run(words, check=True, env=environment)


def measure(args: argparse.Namespace) -> None:
    """One length: a line."""
    import torch

    torch.set_num_threads(args.threads)
    length = args.one
    tokens = torch.randint(0, 50257, (1, length), generator=torch.Generator().manual_seed(0))
    lens, individual, columns = (transformer_lens if args.beside else our_lens)(tokens, args.all)
    individual()
    stored = resident()
    with Peak() as peak:
        lens()
    seconds = [timed(lens) for _ in range(args.repeats)]
    alone = statistics.median(timed(individual) for _ in range(args.repeats))
    middle = statistics.median(seconds)
    spread = f"{middle:.3f} ({min(seconds):.3f} to {max(seconds):.3f})"
    more = (peak.most - stored) / 2**20
    print(
        f"{length:6}  {columns:7}  {spread:29}  {alone:17.3f}  {middle / alone:13.2f}  "
        f"{more:12.0f}",
        flush=True,
    )


def our_lens(tokens: Any, every: bool) -> tuple[Callable[[], object], Callable[[], object], int]:
    """The lens and the pass of Glassformer."""
    import torch

    from glassformer.core.nn import build_model
    from glassformer.families import find
    from glassformer.sight import logit_lens

    model = build_model(find("gpt2/124m"), seed=0).eval()
    positions = "all" if every else None

    def lens() -> object:
        return logit_lens(model, None, tokens, positions=positions, track=[262])

    def forward_pass() -> object:
        with torch.no_grad():
            return model(tokens, logits="last")

    return lens, forward_pass, tokens.shape[1] if every else min(16, tokens.shape[1])


def transformer_lens(
    tokens: Any, every: bool
) -> tuple[Callable[[], object], Callable[[], object], int]:
    """The same of TransformerLens: top 5, probability, entropy and KL of all columns from the
    cached stream."""
    import torch
    import transformer_lens as library

    cfg = library.HookedTransformerConfig(
        n_layers=12,
        d_model=768,
        n_ctx=1024,
        d_head=64,
        n_heads=12,
        d_vocab=50257,
        act_fn="gelu_new",
        seed=0,
    )
    model = library.HookedTransformer(cfg).eval()
    columns = tokens.shape[1] if every else min(16, tokens.shape[1])

    def lens() -> object:
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens, return_type=None)
            stream = cache.accumulated_resid(layer=-1, incl_mid=False, apply_ln=True)[
                :, 0, -columns:
            ].contiguous()
            logprobs = model.unembed(stream).log_softmax(-1)
            individual = logprobs[-1]
            rank = (logprobs > logprobs[..., 262:263]).sum(-1)
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            return (
                logprobs.topk(5),
                rank,
                entropy,
                (individual.exp() * (individual - logprobs)).sum(-1),
            )

    def forward_pass() -> object:
        with torch.no_grad():
            return model(tokens, return_type=None)

    return lens, forward_pass, columns


def timed(call: Callable[[], object]) -> float:
    """Seconds of the processor that a call takes, on all threads: a machine with other work does
    not lengthen them."""
    start = time.process_time()
    call()
    return time.process_time() - start


def resident() -> int:
    """Bytes of the process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Peak:
    """The most bytes in memory meanwhile, looked at every millisecond."""

    def __enter__(self) -> Peak:
        self.most, self.done = resident(), threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        """Look until it is over."""
        while not self.done.wait(0.001):
            self.most = max(self.most, resident())

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


if __name__ == "__main__":
    main()

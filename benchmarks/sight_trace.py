"""Time and memory of a trace of GPT-2's 124M shape (random weights) on a CPU, beside
TransformerLens' run_with_cache.

    python benchmarks/sight_trace.py [--lengths 12 128 512 2048] [--repeats 5] [--threads 1] [--peer
    PYTHON]

Each row is a process of its own: how far its peak memory rose in the first call, then the median
and range of the repeats in seconds of the processor. ``plain`` is the model's own pass with all
logits; ``cell`` opens a score, a share and a logit of a trace. --peer is a Python that has
TransformerLens (a virtual environment of its own).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB, WIDTH, DEPTH, HEADS = 50_257, 768, 12, 12


def main() -> None:
    """Every row, one after the other."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lengths", type=int, nargs="+", default=[12, 128, 512, 2048])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--peer", metavar="PYTHON")
    options.add_argument("--one", nargs=2, metavar=("ROW", "LENGTH"), help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one is not None:
        measure(args.one[0], int(args.one[1]), args.repeats)
        return
    rows = [("plain", sys.executable), ("trace", sys.executable), ("cell", sys.executable)]
    rows += [("transformer_lens", args.peer)] if args.peer else []
    print(f"{'tokens':>6}  {'':<16}  {'ms, median':>10}  {'range':>15}  {'peak rose by, MiB':>17}")
    for length in args.lengths:
        for row, python in rows:
            output = child(row, python, length, args)
            span = f"{output['least']:.1f}-{output['most']:.1f}"
            print(
                f"{length:>6}  {row:<16}  {output['median']:>10.1f}  {span:>15}  "
                f"{output['peak']:>17.1f}",
                flush=True,
            )


def child(row: str, python: str, length: int, args: argparse.Namespace) -> dict[str, float]:
    """One row in a process of its own."""
    threads = str(args.threads)
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if row == "transformer_lens":
        env.pop("PYTHONPATH", None)  # the peer's own packages, not this tree
    command = [
        python,
        str(Path(__file__)),
        "--repeats",
        str(args.repeats),
        "--one",
        row,
        str(length),
    ]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{row} at {length} tokens failed:\n{result.stderr[-2000:]}")
    data: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return data


def measure(row: str, length: int, repeats: int) -> None:
    """Print one row's figures as JSON."""
    run = {
        "plain": our_trace,
        "trace": our_trace,
        "cell": our_trace,
        "transformer_lens": run_with_cache,
    }[row](row, length)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    del result
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        result = run()
        seconds.append(1000 * (time.process_time() - started))
        del result
    fields = {
        "median": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "peak": peak,
    }
    print(json.dumps(fields))


def our_trace(row: str, length: int) -> Callable[[], Any]:
    """Glassformer's pass, trace, or three cells of a trace."""
    import torch

    from glassformer import config as c
    from glassformer.core.nn import build_model
    from glassformer.sight.tracing import Trace

    torch.manual_seed(0)
    attention, mlp = c.Attention(HEADS, bias=True), c.MLP(4 * WIDTH, bias=True)
    context = max(1024, length)
    block = c.Block(attention, mlp, c.LayerNorm())
    stack = c.Stack(DEPTH, (block,), c.Learned(context), last_norm=c.LayerNorm())
    model = build_model(c.Decoder(WIDTH, context, c.Embed(VOCAB), stack), seed=0).eval()
    tokens = torch.randint(0, VOCAB, (1, length))
    with torch.no_grad():
        model(tokens[:, :2])
    if row == "trace":
        return lambda: Trace(model, None, tokens)
    if row == "cell":
        trace = Trace(model, None, tokens)
        last = length - 1
        cells = (
            f"decoder.blocks.3.attn.scores[4,{last},0]",
            f"decoder.blocks.3.attn.pattern[4,{last},0]",
            "logits[-1,5]",
        )
        return lambda: [trace.explain(address) for address in cells]

    def plain() -> Any:
        with torch.no_grad():
            return model(tokens).logits

    return plain


def run_with_cache(row: str, length: int) -> Callable[[], Any]:
    """TransformerLens' run_with_cache of the same shape."""
    import torch
    from transformer_lens import HookedTransformer, HookedTransformerConfig  # type: ignore[import-not-found]

    torch.manual_seed(0)
    cfg = HookedTransformerConfig(
        n_layers=DEPTH, d_model=WIDTH, n_ctx=max(1024, length), d_head=WIDTH // HEADS, n_heads=HEADS, d_mlp=4 * WIDTH,
        d_vocab=VOCAB, act_fn="gelu_new", normalization_type="LN", device="cpu", seed=0,
    )  # fmt: skip
    model = HookedTransformer(cfg).eval()
    tokens = torch.randint(0, VOCAB, (1, length))
    with torch.no_grad():
        model(tokens[:, :2])

    def run() -> Any:
        with torch.no_grad():
            return model.run_with_cache(tokens)

    return run


if __name__ == "__main__":
    main()

"""Time and memory of a trace of GPT-2's 124M shape (random weights) on a CPU, beside
TransformerLens' run_with_cache.

    python benchmarks/sight_trace.py [--lengths 12 128 512 2048] [--repeats 5] [--threads 1] [--peer
    PYTHON]
    python benchmarks/sight_trace.py --any-module [--lengths 512] [--threads 2]

Each row is a process of its own: how far its peak memory rose in the first call, then the median
and range of the repeats in seconds of the processor. ``plain`` is the model's own pass with all
logits; ``cell`` opens a score, a share and a logit of a trace. --peer is a Python that has
TransformerLens (a virtual environment of its own).

--any-module measures the recorder on GPT-2 as ``transformers`` has it: plain and recorded passes in
turns, one number of each kind opened three times in new places, and the bytes kept.
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
    options.add_argument("--any-module", action="store_true")
    options.add_argument("--one", nargs=2, metavar=("ROW", "LENGTH"), help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.any_module:
        for length in args.lengths:
            recorded(length, args.repeats, args.threads)
        return
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


CELLS = {
    "logit": "logits[0,{at},{n}]",
    "mlp.up": "transformer.h.3.mlp.c_fc[0,{at},{n}]",
    "mlp.act": "transformer.h.3.mlp.act[0,{at},{n}]",
    "mlp.down": "transformer.h.3.mlp.c_proj[0,{at},{n}]",
    "query": "transformer.h.3.attn.c_attn[0,{at},{n}]",
    "score": "transformer.h.3.attn.{scores}[0,4,{at},{n}]",
    "pattern": "transformer.h.3.attn.{pattern}[0,4,{at},{n}]",
    "norm": "transformer.h.3.ln_1[0,{at},{n}]",
    "last norm": "transformer.ln_f[0,{at},{n}]",
    "residual": "transformer.h.3[0,{at},{n}]",
    "embedding": "transformer.wte[0,{at},{n}]",
}


def recorded(length: int, repeats: int, threads: int) -> None:
    """Passes of GPT-2 that are recorded beside passes that are not, and numbers opened."""
    import torch
    import transformers

    from glassformer.sight.recording import ModuleTrace

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    ids = torch.randint(0, VOCAB, (1, length))
    for engine in ("eager", "sdpa"):
        model.set_attn_implementation(engine)
        seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
        for turn in range(repeats + 1):
            started = time.process_time()
            with torch.no_grad():
                model(ids)
            between = time.process_time()
            trace = ModuleTrace(model, (ids,))
            if turn:  # the first warms up
                seconds["plain"].append(1000 * (between - started))
                seconds["recorded"].append(1000 * (time.process_time() - between))
        ratios = [a / b for a, b in zip(seconds["recorded"], seconds["plain"], strict=True)]
        spans = ", ".join(
            f"{name} {statistics.median(row):.0f} ({min(row):.0f}-{max(row):.0f}) ms"
            for name, row in seconds.items()
        )
        print(
            f"{length} tokens, {engine}, {threads} threads, load {os.getloadavg()[0]:.1f}: {spans}, "
            f"ratio {statistics.median(ratios):.2f}; {len(trace.operations)} operations, "
            f"kept {trace.kept_bytes >> 20} MiB",
            flush=True,
        )
        names = {"scores": "attn_weights", "pattern": "attn_weights"}
        if engine == "sdpa":
            names = {"scores": "scores", "pattern": "pattern"}
        rows = []
        for name, form in CELLS.items():
            times = []
            for place in range(3):
                address = form.format(at=length - 1 - place, n=5 + place, **names)
                started = time.process_time()
                str(trace.explain(address))
                times.append(1000 * (time.process_time() - started))
            rows.append(f"{name} {times[0]:.1f} then {statistics.median(times[1:]):.1f}")
        print(f"    ms a cell: {'; '.join(rows)}", flush=True)


def our_trace(row: str, length: int) -> Callable[[], Any]:
    """Glassformer's pass, trace, or three cells of a trace."""
    import torch

    from glassformer import config as c
    from glassformer.core.nn import build_model
    from glassformer.sight.recording.trace import Trace

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

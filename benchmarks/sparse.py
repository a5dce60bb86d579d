"""Attention that visits few pairs beside PyTorch's dense kernel: forward and backward, taking
turns.

    python benchmarks/sparse.py --length 8192 --rule "window(256)" --rule "strided(128)"

Dense is `scaled_dot_product_attention(is_causal=True)`, the fastest dense causal kernel of PyTorch,
which knows that half of the pairs are not needed. Ours is what the table of core/nn/engines chooses, its
block masks made anew each time. Memory is the most that the process held above what it held before,
in a process of its own for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer import config
from glassformer.core.config.mask_expressions import parse_rule
from glassformer.core.nn import Mask
from glassformer.core.nn.attention import AttentionInputs, attend
from glassformer.scale.cost import count_pairs

RULES = ("window(256)", "strided(128)", "fixed(128, 8)")


def random_qkv(options: argparse.Namespace, length: int) -> list[Tensor]:
    """Queries, keys and values (1, heads, length, dim) that want a gradient."""
    shape = (1, options.heads, length, options.dim)
    return [
        torch.randn(shape, dtype=getattr(torch, options.dtype), requires_grad=True)
        for _ in range(3)
    ]


def dense(inputs: list[Tensor]) -> None:
    """PyTorch's causal kernel, forward and backward."""
    F.scaled_dot_product_attention(*inputs, is_causal=True).sum().backward()


def our_layer(inputs: list[Tensor], mask_rule: config.MaskRule) -> None:
    """The library's causal layer with this rule, forward and backward, its mask built anew."""
    pos = torch.arange(inputs[0].shape[2])[None]
    mask = Mask(pos, pos, causal=True, rule=mask_rule, contiguous=True)
    attend(AttentionInputs(*inputs, mask, None, inputs[0].shape[-1] ** -0.5)).sum().backward()
    assert mask._dense is None, "a dense mask was built"


def seconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    start = clock()
    work()
    return clock() - start


def peak(options: argparse.Namespace, length: int, rule: str) -> float:
    """MiB that one forward and backward pass adds to a fresh process ("" is dense)."""
    words = [sys.executable, __file__, "--peak", rule, "--length", str(length)]
    words += ["--heads", str(options.heads), "--dim", str(options.dim), "--dtype", options.dtype]
    return float(
        json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    )


def measure_peak(options: argparse.Namespace) -> None:
    """The child's part: print the MiB added."""
    small = random_qkv(options, 2048)
    dense(small)
    our_layer(small, config.Window(32))  # libraries are loaded before the first reading
    inputs = random_qkv(options, options.length[0])
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    dense(inputs) if not options.peak else our_layer(inputs, parse_rule(options.peak))
    print((status("VmHWM") - before) / 1024)


def status(name: str) -> int:
    """A number of this process's memory, in KiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Print one row for each length and rule."""
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument(
        "--length", type=int, action="append", help="tokens in a row; may be given several times"
    )
    reader.add_argument(
        "--rule", action="append", help=f"may be given several times ({', '.join(RULES)})"
    )
    reader.add_argument("--heads", type=int, default=8)
    reader.add_argument("--dim", type=int, default=64, help="of a head")
    reader.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    reader.add_argument(
        "--rounds", type=int, default=3, help="of taking turns; the medians are printed"
    )
    reader.add_argument(
        "--processor",
        action="store_true",
        help="one thread by the processor's clock: others may work",
    )
    reader.add_argument("--peak", help=argparse.SUPPRESS)
    options = reader.parse_args()
    options.length = options.length or [2048, 8192]
    if options.peak is not None:
        return measure_peak(options)
    clock = time.process_time if options.processor else time.perf_counter
    if options.processor:
        torch.set_num_threads(1)
    print(
        f"{options.heads} heads of {options.dim}, {options.dtype}, {torch.get_num_threads()} "
        "threads, causal"
    )
    print(
        f"{'tokens':>7} {'rule':24} {'pairs':>12} {'of causal':>9} {'dense s':>8} {'ours s':>8} "
        f"{'faster':>7}",
        end="",
    )
    print(f" {'dense MiB':>9} {'ours MiB':>8}")
    for length in options.length:
        inputs = random_qkv(options, length)
        dense_memory = peak(options, length, "")
        for rule in options.rule or RULES:
            mask_rule = parse_rule(rule)
            our_layer(inputs, mask_rule)
            pair = partial(dense, inputs), partial(our_layer, inputs, mask_rule)
            turns = [[seconds(work, clock) for work in pair] for _ in range(options.rounds)]
            reference, individual = (statistics.median(side) for side in zip(*turns, strict=True))
            pairs = count_pairs(mask_rule, length, causal=True)
            share = pairs / (length * (length + 1) / 2)
            print(
                f"{length:>7} {rule:24} {pairs:>12,} {share:>9.1%} {reference:>8.3f} {individual:>8.3f}",
                end="",
            )
            print(
                f" {reference / individual:>6.1f}x {dense_memory:>9.0f} {peak(options, length, rule):>8.0f}",
                flush=True,
            )
    return None


if __name__ == "__main__":
    main()

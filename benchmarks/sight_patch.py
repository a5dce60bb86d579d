"""Activation patching beside TransformerLens: a grid of layers x positions x (stream, attention,
MLP), time and memory.

    python benchmarks/sight_patch.py [--peer /tmp/tl/venv/bin/python] [--tokens 12 64] [--threads 2]

A model of the shape of GPT-2's 124M with random weights, the same in both, fp32. Two texts of
random tokens: once with two tokens that differ, after the first quarter, as in the field's pairs of
prompts, once with all tokens different. Theirs is ``patching.get_act_patch_block_every``;
``--peer`` names a Python that has transformer_lens (without it, ours alone). Seconds of the
processor and the clock are the best of ``--repeats``; memory is what the process grew by beyond the
loaded model at its peak (Linux). The largest difference of a cell's logit difference says that both
measured the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWER, WRONG = 17, 300


def texts(length: int, differ: str) -> tuple[list[int], list[int]]:
    """Two texts of random tokens: ``differ`` in two places, or in all."""
    clean = [(7919 * (place + 1)) % 50_000 for place in range(length)]
    places = range(length) if differ == "all" else (length // 4, length // 4 + 1)
    return clean, [
        (item + 11) % 50_000 if place in places else item for place, item in enumerate(clean)
    ]


def our_patching(
    folder: str, clean: list[int], corrupted: list[int], one_part: bool
) -> Callable[[], dict[str, Any]]:
    import glassformer

    model, _ = glassformer.load(folder)
    options: dict[str, Any] = {"answer": ANSWER, "wrong": WRONG, "progress": False}
    if one_part:
        options["parts"] = "attn.write"

    def work() -> dict[str, Any]:
        grid = glassformer.patch_grid(model, None, clean, corrupted, **options)
        return {piece.name: piece.value for piece in grid.parts}

    return work


def transformer_lens(
    folder: str, clean: list[int], corrupted: list[int], one_part: bool
) -> Callable[[], dict[str, Any]]:
    import torch
    from transformer_lens import TransformerBridge, patching
    from transformers import GPT2LMHeadModel

    torch.set_grad_enabled(False)
    published = GPT2LMHeadModel.from_pretrained(folder)
    model = TransformerBridge.boot_transformers(folder, hf_model=published, device="cpu")
    item, second = (torch.tensor([text]) for text in (clean, corrupted))

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, ANSWER] - logits[0, -1, WRONG]

    def work() -> dict[str, Any]:
        _, cache = model.run_with_cache(item)
        if one_part:
            return {
                "attn.write": patching.get_act_patch_attn_out(model, second, cache, metric).tolist()
            }
        result = patching.get_act_patch_block_every(model, second, cache, metric)
        return dict(zip(("resid_pre", "attn.write", "ffn.write"), result.tolist(), strict=True))

    return work


def measure(who: str, folder: str, length: int, differ: str, repeats: int, one_part: bool) -> None:
    """One process: JSON of seconds, of MB beyond the model, and of every cell."""
    work = {"ours": our_patching, "theirs": transformer_lens}[who](
        folder, *texts(length, differ), one_part
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far, of loading, is forgotten
    before = memory("VmRSS")
    clock, processor, cells = [], [], {}
    for _ in range(repeats):
        start, in_use = time.perf_counter(), time.process_time()
        cells = work()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - in_use)
    fields = {
        "clock": min(clock),
        "processor": min(processor),
        "MB": memory("VmHWM") - before,
        "cells": cells,
    }
    print("\n" + json.dumps(fields))


def memory(name: str) -> float:
    """A line of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def largest(item: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference of a cell; the stream after a layer is the one before the next."""
    pairs = [(item[name], second[name]) for name in ("attn.write", "ffn.write") if name in item]
    pairs += [(item["resid"][:-1], second["resid_pre"][1:])] if "resid" in item else []
    rows = [
        zip(a, b, strict=True)
        for local, reference in pairs
        for a, b in zip(local, reference, strict=True)
    ]
    return max(abs(a - b) for row in rows for a, b in row)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="a Python with transformer_lens")
    parser.add_argument("--tokens", type=int, nargs="+", default=[12, 64])
    parser.add_argument(
        "--differ", nargs="+", default=["two", "all"], choices=("two", "all"), help="(both)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--repeats", type=int, nargs=2, default=[3, 1], metavar=("OURS", "THEIRS"), help="(3 1)"
    )
    parser.add_argument(
        "--one-part", action="store_true", help="what attention writes alone, a third of the grid"
    )
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        who, folder, length, differ, repeats = args.measure
        measure(who, folder, int(length), differ, int(repeats), args.one_part)
        return
    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.families import find

    threads = {
        "OMP_NUM_THREADS": str(args.threads),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    pythons = {"ours": sys.executable, **({"theirs": args.peer} if args.peer else {})}
    with tempfile.TemporaryDirectory() as folder:
        glassformer.save(build_model(find("gpt2/124m"), seed=1), folder, layout="hf")
        for length in args.tokens:
            for differ in args.differ:
                result = {}
                for who, python in pythons.items():
                    repeats = str(args.repeats[who == "theirs"])
                    command = [
                        python,
                        str(Path(__file__)),
                        "--measure",
                        who,
                        folder,
                        str(length),
                        differ,
                        repeats,
                    ]
                    command += ["--one-part"] if args.one_part else []
                    done = subprocess.run(
                        command,
                        env={**os.environ, **threads},
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    if done.returncode:
                        raise SystemExit(done.stderr[-3000:])
                    result[who] = json.loads(done.stdout.splitlines()[-1])
                    row = result[who]
                    times = f"{row['processor']:7.2f} s of the processor, {row['clock']:7.2f} s"
                    print(
                        f"{length:3} tokens, {differ} differ, {who:6}: {times}, "
                        f"{row['MB']:6.0f} MB",
                        flush=True,
                    )
                if len(result) > 1:
                    apart = largest(result["ours"]["cells"], result["theirs"]["cells"])
                    faster = result["theirs"]["processor"] / result["ours"]["processor"]
                    print(
                        f"{'':26}{faster:.1f} times less processor; cells differ by at most "
                        f"{apart:.1e}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

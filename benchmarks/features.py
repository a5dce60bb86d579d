"""A sparse autoencoder on one's own model: the time to train it and the loss that its features recover.

    python benchmarks/features.py --data DATA/tinystories/val.txt --held-out DATA/tinystories/test.txt \\
        --separator '<|endoftext|>' [--model FOLDER] [--address decoder.blocks.3.resid] \\
        [--width 1536] [--steps 500] [--activation topk] [--threads 2]

Without --model a glass/4m is trained first, for 200 steps of 2,048 tokens. Wall time and processor time
are of the dictionary's training alone, with its two validations; on a machine that others use, read the
processor time. The losses are of 16,000 tokens of the held-out text, beside a random dictionary, the
mean and zeros.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def glassformer(threads: int, *words: str) -> tuple[float, float]:
    """Runs a command; its wall time and processor time in seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "glassformer", *words]
    subprocess.run(command, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, processor


def main() -> None:
    """A model where none is named, a dictionary, and what it keeps."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", required=True)
    options.add_argument("--held-out", required=True)
    options.add_argument("--separator")
    options.add_argument("--model")
    options.add_argument("--address", default="decoder.blocks.3.resid")
    options.add_argument("--width", default="1536")
    options.add_argument("--steps", default="500")
    options.add_argument("--activation", default="topk")
    options.add_argument("--threads", type=int, default=2)
    args = options.parse_args()
    apart = ["--data.separator", args.separator] if args.separator else []
    shared = ["--data.train", args.data, *apart, "--sample-every", "0", "--batch", "16"]
    with tempfile.TemporaryDirectory() as folder:
        model, out = args.model or str(Path(folder) / "model"), str(Path(folder) / "features")
        if not args.model:
            sizes = ["--recipe", "glass/4m", "--context", "128", "--steps", "200"]
            glassformer(args.threads, "train", *shared, *sizes, "--out", model)
        name = "--train.objective."
        settings = [f"{name}address", args.address, f"{name}width", args.width]
        settings += [f"{name}activation", args.activation, "--steps", args.steps]
        settings += ["--evaluate-every", str(int(args.steps) // 2), "--evaluate-batches", "4"]
        beginning = ["--from", model, "--objective", "Features"]
        wall, processor = glassformer(
            args.threads, "train", *shared, *beginning, *settings, "--out", out
        )
        print(f"trained in {wall:.0f} s, {processor:.0f} s of the processor", flush=True)
        apart = ["--separator", args.separator] if args.separator else []
        reading = ["--data", args.held_out, "--limit", "16000", *apart]
        glassformer(args.threads, "features", out, *reading)


if __name__ == "__main__":
    main()

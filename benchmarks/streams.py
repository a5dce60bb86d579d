"""Data for big runs: tokenising by threads, reading rows, order and memory.

    python benchmarks/streams.py --text FILE [--tokenizer FOLDER --megabytes 48 --rounds 3 --rows
    512 --context 1024]

FILE is repeated until it has so many megabytes. Sides take turns; medians and ranges are of the
rounds.
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from glassformer.core.training.batches import COMPUTED, LISTED, Batches, order_of
from glassformer.formats.data import find, tokenise
from glassformer.formats.tokenizer_files import open as open_tokenizer


def private() -> float:
    """MiB of this process that are its own: mapped files are not counted."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return (
        sum(
            int(line.split()[1])
            for line in lines
            if line.startswith(("Private_Dirty", "Anonymous"))
        )
        / 2048
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def print_values(name: str, values: list[float], unit: str) -> None:
    print(
        f"{name:<44} {statistics.median(values):10.2f} ({min(values):.2f} to "
        f"{max(values):.2f}) {unit}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--megabytes", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()
    tokenizer = open_tokenizer(args.tokenizer)
    with tempfile.TemporaryDirectory() as place:
        path, content = Path(place) / "text.txt", args.text.read_bytes()
        path.write_bytes(content * -(-args.megabytes * 10**6 // len(content)))
        source = find(path, separator="<|endoftext|>")
        variants = {"1 thread": 1, "2 threads": 2}
        result: dict[str, list[float]] = {name: [] for name in variants}
        for turn in range(args.rounds):
            for name, workers in variants.items():
                cache, start = Path(place) / f"{turn} {name}", time.perf_counter()
                shards = tokenise(source, tokenizer, cache=cache, workers=workers)
                result[name].append(len(shards) / (time.perf_counter() - start) / 1e6)
        print(
            f"{source.size / 1e6:.0f} MB, {len(shards):,} tokens, {tokenizer.backend}, "
            f"{os.cpu_count()} cores"
        )
        for name, speeds in result.items():
            print_values(f"tokenising, {name}", speeds, "M tokens/s")
        read_rows(shards.tokens.filename, args)
        batches = Batches(shards, args.rows, args.context)
        collections.deque((next(batches) for _ in range(20)), 0)
        before, speeds = private(), []
        for _ in range(args.rounds):
            took = seconds(lambda: collections.deque((next(batches) for _ in range(20)), 0))
            speeds.append(20 * args.rows * args.context / took / 1e6)
        print_values(f"rows of {args.context} read, file in memory", speeds, "M tokens/s")
        print(f"own memory after {args.rounds * 20} more batches: {private() - before:+.1f} MiB")
    for variant, name, rows in (
        (LISTED, "listed", 10**7),
        (COMPUTED, "computed", 10**7),
        (COMPUTED, "computed", 10**9),
    ):
        before, start = private(), time.perf_counter()
        order = order_of(rows, np.random.SeedSequence(0), variant)
        order(0, 512)
        took = time.perf_counter() - start
        print(
            f"order of {rows:,} rows, {name}: {took * 1000:.1f} ms to begin, "
            f"{private() - before:.1f} MiB"
        )


def read_rows(path: str | os.PathLike[str], args: argparse.Namespace) -> None:
    """Random rows of a file that the disk cache does not hold."""
    size = Path(path).stat().st_size
    speeds = []
    for turn in range(args.rounds):
        with Path(path).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        tokens = np.memmap(path, np.uint16, "r")
        rows = order_of(size // 2 // args.context, np.random.SeedSequence(turn), LISTED)(
            0, args.rows
        )
        start = time.perf_counter()
        for row in rows:
            tokens[row * args.context : (row + 1) * args.context].sum()
        speeds.append(len(rows) * args.context / (time.perf_counter() - start) / 1e6)
    print_values(f"rows of {args.context} read, file not in memory", speeds, "M tokens/s")


if __name__ == "__main__":
    main()

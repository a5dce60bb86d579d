"""From the shell to the first token: seconds of a new process, by the clock and by the processor.

    git worktree add ../before COMMIT
    python benchmarks/start.py [../before] . [--models tiny FOLDER ...] [--turns 15]

Each turn starts a process of each kind: `import torch` (with Python's garbage collector and without
it), and `glassformer generate MODEL x --max-new 1 --temperature 0` of each tree. One thread; the
files are in the system's cache, compiled Python files too. On a busy machine compare the least.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(command: list[str], tree: Path, cache: str) -> tuple[float, float]:
    """Seconds of a process that runs ``command``: elapsed, and of the processor."""
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": str(tree.resolve() / "src"),
        "PYTHONPYCACHEPREFIX": cache,
        "OMP_NUM_THREADS": "1",
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path, nargs="+")
    parser.add_argument("--models", nargs="+", default=["tiny"])
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args()
    python, options = [sys.executable], ["x", "--max-new", "1", "--temperature", "0"]
    jobs = {
        "import torch": ([*python, "-c", "import torch"], args.trees[0]),
        "the same, no collector": (
            [*python, "-c", "import gc; gc.disable(); import torch"],
            args.trees[0],
        ),
    }
    for model in args.models:
        generate = [*python, "-m", "glassformer", "generate", model, *options]
        jobs |= {f"{Path(model).name}, {tree}": (generate, tree) for tree in args.trees}
    with tempfile.TemporaryDirectory() as cache:
        for command, tree in jobs.values():  # compiles
            seconds(command, tree, cache)
        turns = [
            {name: seconds(command, tree, cache) for name, (command, tree) in jobs.items()}
            for _ in range(args.turns)
        ]
    print("| what | least, median s | least, median s of the processor |\n|---|---|---|")
    for name in jobs:
        cells = (
            f"{min(values):.3f}, {statistics.median(values):.3f}"
            for values in zip(*(turn[name] for turn in turns), strict=True)
        )
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

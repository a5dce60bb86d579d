"""Character-level Shakespeare against nanoGPT's CPU settings: wall clock to a validation loss,
process start included.

    python benchmarks/shakespeare.py [--nanogpt FOLDER] [--repeats 3] [--data input.txt]

Ours is the command line itself: `glassformer train runs/shakespeare.toml` for the time to a loss of
1.88, and `runs/shakespeare-long.toml`, its steps fitted to nanoGPT's own wall clock, for the loss
at that time. Our validation is the whole last tenth, every character once. nanoGPT runs in a copy
of FOLDER with the settings of its README; its loss is its own estimate (20 random batches) at the
end. The two alternate; medians are compared. Exit 1 when ours is not ahead. Without --nanogpt only
ours is measured, and exit 1 means that it missed 1.88.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = 1.88
SETTINGS = {  # nanoGPT's README, for "cheap computers"
    "device": "cpu",
    "compile": False,
    "eval_iters": 20,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "max_iters": 2000,
    "lr_decay_iters": 2000,
    "dropout": 0.0,
}


@dataclass
class Result:
    """One run: seconds from the start of the process to the target and to the end, and the loss
    there."""

    reached: float | None
    seconds: float
    loss: float
    parameters: int
    steps: int


def our_training(run: str, data: Path, steps: int | None = None) -> Result:
    """Our command line, with the log watched from outside."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            sys.executable,
            "-m",
            "glassformer",
            "train",
            str(ROOT / "runs" / run),
            "--out",
            str(out),
        ]
        command += ["--data.train", str(data)]
        if steps is not None:
            command += ["--steps", str(steps), "--evaluate-every", str(steps)]
        # nothing tokenised beforehand
        environment = {**os.environ, "GLASSFORMER_CACHE": str(Path(folder) / "cache")}
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        reached, ids = None, 0
        log = out / "log.jsonl"
        while process.poll() is None:
            time.sleep(0.02)
            lines = log.read_text().splitlines(keepends=True)[ids:] if log.exists() else []
            full = [line for line in lines if line.endswith("\n")]
            ids += len(full)
            good = [
                line
                for line in map(json.loads, full)
                if line.get("valid_loss", TARGET + 1) <= TARGET
            ]
            if good and reached is None:
                reached = time.perf_counter() - start
        seconds = time.perf_counter() - start
        message = process.stderr.read() if process.stderr else ""
        if process.returncode:
            raise SystemExit(f"our run failed:\n{message}")
        last = json.loads(log.read_text().splitlines()[-1])
        parameters = int(re.search(r"([\d,]+) parameters", message)[1].replace(",", ""))
        if reached is None and last["valid_loss"] <= TARGET:
            reached = seconds
        return Result(reached, seconds, last["valid_loss"], parameters, last["step"])


def nanogpt(folder: Path, data: Path, settings: dict[str, object] | None = None) -> Result:
    """nanoGPT's own script, on a copy of its folder; its settings for a CPU unless others are
    given."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "nanoGPT"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git", "out*"))
        shutil.copy(data, copy / "data" / "shakespeare_char" / "input.txt")
        subprocess.run(
            [sys.executable, "prepare.py"],
            cwd=copy / "data" / "shakespeare_char",
            check=True,
            stdout=subprocess.DEVNULL,
        )
        command = [sys.executable, "-u", "train.py", "config/train_shakespeare_char.py"]
        command += [
            f"--{name}={value}"
            for name, value in (SETTINGS if settings is None else settings).items()
        ]
        start, reached, loss, messages = time.perf_counter(), None, float("inf"), []
        process = subprocess.Popen(
            command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in process.stdout or ():
            messages.append(line)
            result = re.match(r"step \d+: train loss [\d.]+, val loss ([\d.]+)", line)
            if result:
                loss = float(result[1])
                if loss <= TARGET and reached is None:
                    reached = time.perf_counter() - start
        if process.wait():
            raise SystemExit("nanoGPT failed:\n" + "".join(messages[-20:]))
        seconds = time.perf_counter() - start
        counted = re.search(r"number of parameters: ([\d.]+)M", "".join(messages))
        return Result(
            reached, seconds, loss, round(float(counted[1]) * 1e6) if counted else 0, 2000
        )


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.1f} s ({min(values):.1f} to {max(values):.1f})"


def find_text(path: str | None) -> Path:
    """Shakespeare's 1,115,394 characters: named, or wherever our own data commands find them."""
    if path:
        return Path(path).resolve()
    from glassformer import UserError
    from glassformer.formats.data import find as find_corpus

    try:
        return find_corpus("shakespeare").path.resolve()
    except UserError as error:
        raise SystemExit(str(error)) from None


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--data", help="Shakespeare's text, when it is somewhere else")
    args = parser.parse_args()
    data = find_text(args.data)
    sprints, longs, peers = [], [], []
    step = None
    for turn in range(args.repeats):
        sprints.append(our_training("shakespeare.toml", data))
        item = sprints[-1]
        print(
            f"ours {turn + 1}: {item.loss:.4f} after {item.steps} steps, {item.seconds:.1f} s",
            flush=True,
        )
        if not args.nanogpt:
            continue
        peers.append(nanogpt(args.nanogpt, data))
        item = peers[-1]
        print(
            f"nanoGPT {turn + 1}: {item.loss:.4f} after {item.steps} steps, {item.seconds:.1f} s",
            flush=True,
        )
        budget = statistics.median(peer.seconds for peer in peers)
        if step is None:  # how long a step of the long run takes: from a short one
            probe = our_training("shakespeare-long.toml", data, 100)
            start = statistics.median(s.seconds for s in sprints) / 2
            step = (probe.seconds - start) / 100
        longs.append(our_training("shakespeare-long.toml", data, int(0.9 * (budget - 5) / step)))
        item = longs[-1]
        print(
            f"ours, long {turn + 1}: {item.loss:.4f} after {item.steps} steps, {item.seconds:.1f} s",
            flush=True,
        )
        step = item.seconds / item.steps

    reached = [s.reached for s in sprints if s.reached is not None]
    if len(reached) < len(sprints):
        print(f"ours did not reach {TARGET} in every run: {[s.loss for s in sprints]}")
        return 1
    print(
        f"\nours     to {TARGET}: {spread(reached)}, {sprints[0].parameters:,} parameters, loss "
        f"{sprints[0].loss:.4f}"
    )
    if not peers:
        return 0
    best = [peer.reached or peer.seconds for peer in peers]
    note = (
        ""
        if all(peer.reached for peer in peers)
        else f" (its whole run: it ended at {peers[0].loss}, above {TARGET})"
    )
    print(f"nanoGPT  to {TARGET}: {spread(best)}, {peers[0].parameters:,} parameters{note}")
    ratios = [reference / local for reference, local in zip(best, reached, strict=True)]
    print(
        f"ratio: {statistics.median(ratios):.1f} times faster ({min(ratios):.1f} to "
        f"{max(ratios):.1f})"
    )
    within = [run for run, peer in zip(longs, peers, strict=True) if run.seconds <= peer.seconds]
    local, reference = (
        statistics.median(run.loss for run in longs),
        statistics.median(peer.loss for peer in peers),
    )
    print(f"at nanoGPT's wall clock: ours {local:.4f}, nanoGPT {reference:.4f}")
    print(
        f"  ours {spread([r.seconds for r in longs])}, nanoGPT "
        f"{spread([p.seconds for p in peers])}, ",
        end="",
    )
    print(f"{len(within)} of {len(longs)} of ours within it")
    return 0 if statistics.median(ratios) > 1 and local < reference else 1


if __name__ == "__main__":
    raise SystemExit(main())

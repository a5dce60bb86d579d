"""One number of a large model on a small machine: seconds and anonymous memory of ``glassformer why``.

    python benchmarks/laptop.py FOLDER [--size llama/3-8b] [--depth 32] [--bits 4] [--threads 2]
        [--address ADDRESS ...] [--repeats 1] [--cold]

FOLDER is made where it does not exist: random weights of the shape ``--size`` with ``--depth`` blocks,
in bfloat16 as published (8 B: 16 GB), or quantized to ``--bits``. Each question is a process of its
own over a text of 100 tokens. Anonymous memory is what the process holds beside mapped files
(RssAnon of /proc/PID/status, sampled each 20 ms): pages of the mapped weights are the system's to
take back. ``--cold`` drops the folder's files from the system's cache before each run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.core import config, files
from glassformer.core.checkpoints import tensors as tensorfiles
from glassformer.core.config import serial
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train
from glassformer.families import write_config
from glassformer.fast.quantized import QuantizedLayout
from glassformer.formats import quantized_weights, weights
from glassformer.formats.checkpoint import FORMAT, Checkpoint

TOKENS = 100
SAMPLE = 0.02  # seconds between two looks at a process
ADDRESS = "decoder.blocks.20.attn.scores[5,99,42]"


def main() -> None:
    """Make the folder, ask each question, print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default="llama/3-8b")
    parser.add_argument("--depth", type=int, help="blocks, in place of the size's own number")
    parser.add_argument("--bits", type=int, choices=(16, 8, 4), default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--address", nargs="+", default=[ADDRESS])
    parser.add_argument("--up", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    if not args.folder.exists():
        make(args.folder, args.size, args.depth, args.bits)
    shards = sorted(args.folder.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in shards)
    print(f"{args.folder}: {size / 2**30:.2f} GiB of weights, {args.threads} threads")
    for address in args.address:
        for _ in range(args.repeats):
            if args.cold:
                forget(shards)
            ask(args.folder, address, args.up, args.threads)


# ---------------------------------------------------------------------------------- the folder


def make(folder: Path, size: str, depth: int | None, bits: int) -> None:
    """A folder of random weights, written one tensor at a time."""
    cfg: Any = Checkpoint.open(size).config
    if depth is not None:
        cfg = replace(cfg, decoder=replace(cfg.decoder, depth=depth))
    meta = build_model(cfg, device="meta", dtype=torch.bfloat16)
    if bits == 16:
        recipe, page = write_config(cfg, "llama")
        page = {**page, "torch_dtype": "bfloat16"}
        table, published = recipe.names(cfg)
        pieces = weights.pieces(table, dict(meta.named_parameters()), weights.shapes(published))
        drawn = [replace(p, make=partial(progress, p.name, draw, p.shape)) for p in pieces]
        contents = tensorfiles.contents(drawn)
    else:
        page, contents = few_bits(cfg, meta, bits)
    with files.write_folder(folder) as beside:
        train("byte").save(beside)
        for name, content in contents.items():
            files.write(beside / name, content)
        files.write(beside / "config.json", json.dumps(page, indent=2))
    print(file=sys.stderr)


def few_bits(
    cfg: config.Model, meta: torch.nn.Module, bits: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The page and the files of a model in few bits, of codes and scales that are drawn."""
    layout = QuantizedLayout(bits)
    plan, pieces = layout.plan(meta), []
    for name, weight in meta.named_parameters():
        if name not in plan:
            make = partial(progress, name, draw, tuple(weight.shape))
            pieces.append(tensorfiles.PendingTensor(name, weight.dtype, tuple(weight.shape), make))
            continue
        rows, columns = weight.shape
        few, groups = plan[name], -(-columns // layout.group)
        kind, shape = (
            (torch.uint8, (rows, columns // 2)) if few == 4 else (torch.int8, (*weight.shape,))
        )
        codes = partial(progress, name, partial(draw_codes, kind), shape)
        # uniform codes of the size that new weights have
        scale = partial(torch.full, (rows, groups), 0.02 * 12**0.5 / 2**few, dtype=torch.float16)
        pieces.append(tensorfiles.PendingTensor(name + quantized_weights.CODES, kind, shape, codes))
        scales = (name + quantized_weights.SCALES, torch.float16, (rows, groups), scale)
        pieces.append(tensorfiles.PendingTensor(*scales))
    page = vars(quantized_weights.CodesConfig(quantized_weights.VERSION, layout.group, "bfloat16"))
    book = {"glassformer": FORMAT, "model": serial.to_dict(cfg), quantized_weights.KEY: page}
    metadata = {quantized_weights.KEY: json.dumps(page)}
    return book, tensorfiles.contents(pieces, metadata=metadata)


def draw_codes(kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Uniform codes whose mean is 0: -7 to 7, two in a byte, or -127 to 127."""
    if kind == torch.int8:
        return torch.randint(-127, 128, shape, dtype=kind)
    low, high = torch.randint(1, 16, (2, *shape), dtype=kind)
    return low + 16 * high


def progress(name: str, draw: Any, shape: tuple[int, ...]) -> Tensor:
    print(f"\r{name:<60}", end="", file=sys.stderr, flush=True)
    return draw(shape)  # type: ignore[no-any-return]


def draw(shape: tuple[int, ...]) -> Tensor:
    """Ones for a norm, else normal numbers of the size that new weights have."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)


def forget(paths: list[Path]) -> None:
    """Ask the system to drop these files from its cache."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -------------------------------------------------------------------------------- the question


def ask(folder: Path, address: str, up: int, threads: int) -> None:
    """Print seconds and the highest anonymous memory of a process that opens one number."""
    text = ("The quick brown fox jumps over the lazy dog. " * 3)[:TOKENS]
    command = [sys.executable, "-m", "glassformer", "why", str(folder), text, address]
    command += ["--up", str(up)] if up else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak, processor = {"RssAnon": 0, "RssFile": 0}, resource.getrusage(resource.RUSAGE_CHILDREN)
    while process.poll() is None:
        for name, count in resident(process.pid).items():
            peak[name] = max(peak[name], count)
        time.sleep(SAMPLE)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = sum(after[:2]) - sum(processor[:2])  # user and system
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"This question failed: {' '.join(command)}\n{errors}")
    print(
        f"{output.splitlines()[0]}\n    {seconds:.1f} s, {cpu_seconds:.1f} s of the processor, "
        f"anonymous {peak['RssAnon'] / 2**20:.2f} GiB, "
        f"mapped files {peak['RssFile'] / 2**20:.2f} GiB; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def resident(pid: int) -> dict[str, int]:
    """KiB that a process holds now: anonymous pages, and pages of files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return {}
    rows = (line.split() for line in lines if line.startswith(("RssAnon", "RssFile")))
    return {name.rstrip(":"): int(size) for name, size, _ in rows}


if __name__ == "__main__":
    main()

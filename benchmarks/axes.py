"""The axes beside data, measured on processes of this machine: longest context in a given memory,
cost of a step.

    python benchmarks/axes.py [--memory 256] [--rounds 5] [--json FILE]

Four processes of one thread each stay up; one, two or all of them work, in turn, so that a busy
machine is as busy for all. With two cores nothing here can be faster than one process by more than
two times, and four only wait for one another: what can be shown is memory, and the processor's time
of all processes together beside that of one.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.training.batches import Batch
from glassformer.core.training.loss import forward, token_loss
from glassformer.fast.training.allocator import peak_memory, reset_peak_memory
from glassformer.scale import expert_parallel, tensor
from glassformer.scale.ring import Ring

SIZES = (1, 2, 4)
MIB = 1 << 20


def shape(mixture: bool = False) -> c.Decoder:
    """3 M parameters: 128 wide, 4 blocks, 4 heads over 4, 512 tokens."""
    ffn: Any = c.MoE(4, 2, c.GatedMLP(192)) if mixture else c.GatedMLP(384)
    stack = c.Stack(4, (c.Block(c.Attention(4), ffn),), c.Rotary(), last_norm=c.RMSNorm())
    return c.Decoder(128, 1 << 20, c.Embed(512), stack)


def piece(length: int, rows: int = 1, seed: int = 0) -> Batch:
    drawn = torch.randint(512, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return Batch(drawn[:, :-1], drawn[:, 1:].contiguous())


def step(model: Any, batch: Batch) -> None:
    """Forward, loss, backward."""
    token_loss(model, forward(model, batch), batch.targets, 0.0).total.backward()
    model.zero_grad()


def peak(model: Any, batch: Batch) -> int:
    """The most bytes that a step holds beyond what was there."""
    reset_peak_memory()
    before = peak_memory()
    step(model, batch)
    return peak_memory() - before


def longest(group: Any, size: int, limit: int) -> list[tuple[int, int]]:
    """(context, largest peak of any process in bytes) for contexts that grow by an eighth until one
    does not fit."""
    model, result, length = build_model(shape(), seed=0), list[tuple[int, int]](), 1024 * size
    ring = Ring(group) if size > 1 else None
    if ring is not None:
        ring.attach(model)
    while True:
        batch = piece(length)
        stored = peak(model, batch if ring is None else ring.shard(batch))
        most = torch.tensor([stored])
        if size > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        result.append((length, int(most)))
        if int(most) > limit:
            return result
        length = -(-length * 9 // 8 // 64) * 64


def works(axis: str, group: Any, size: int, rank: int) -> tuple[Any, Batch]:
    """A model and what this process has to do of one step, for so many processes on an axis; the
    whole for one."""
    model, batch = build_model(shape(axis == "expert"), seed=0), piece(2048, rows=4)
    if size == 1:
        return model, batch
    if axis == "context":
        ring = Ring(group)
        ring.attach(model)
        return model, ring.shard(batch)
    if axis == "tensor":
        tensor.split_model(model, group)
        return model, batch
    expert_parallel.split_model(model, group)
    return model, batch.rows(4 // size * rank, 4 // size * (rank + 1))


def measured(groups: dict[int, Any], rank: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds of a step and of the processor, for each axis and number of processes, in turn."""
    rows = []
    for axis in ("context", "tensor", "expert"):
        result = {size: works(axis, groups[size], size, rank) for size in SIZES if rank < size}
        taken: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
        for turn in range(rounds + 1):
            for size in SIZES:
                dist.barrier()
                if rank < size:
                    start, in_use = time.perf_counter(), time.process_time()
                    step(*result[size])
                    spent = torch.tensor(
                        [time.perf_counter() - start, time.process_time() - in_use]
                    )
                    if size > 1:
                        dist.all_reduce(spent, group=groups[size])
                    if turn:  # the first one warms up
                        taken[size].append((float(spent[0]) / size, float(spent[1])))
        rows += [{"axis": axis, "processes": size, "taken": taken[size]} for size in SIZES]
    return rows


def worker(memory: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {size: dist.new_group(list(range(size))) for size in SIZES}
    contexts = {}
    for size in SIZES:
        dist.barrier()
        if rank < size:
            contexts[size] = longest(groups[size], size, memory * MIB)
    return {"memory": memory, "contexts": contexts, "steps": measured(groups, rank, rounds)}


def report(result: dict[str, Any]) -> None:
    print(
        f"the longest context whose step (forward, backward) holds at most {result['memory']} "
        "MiB a process"
    )
    print("processes   context   peak (MiB)   the next did not fit")
    for size, tried in result["contexts"].items():
        (length, stored), (more, over) = tried[-2:]
        print(f"{size:>9} {length:>9,} {stored / MIB:>12.0f}   {more:,} ({over / MIB:.0f} MiB)")
    print(
        "\naxis      processes   seconds a step (range)   beside one   processor's time of "
        "all, beside one"
    )
    for axis in ("context", "tensor", "expert"):
        rows = {row["processes"]: row["taken"] for row in result["steps"] if row["axis"] == axis}
        for size, taken in rows.items():
            wall = [item for item, _ in taken]
            ratios = [item[0] / alone[0] for item, alone in zip(taken, rows[1], strict=True)]
            cpu = [item[1] / alone[1] for item, alone in zip(taken, rows[1], strict=True)]
            spread = f"{statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f})"
            beside = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            in_use = f"{statistics.median(cpu):.2f} ({min(cpu):.2f} to {max(cpu):.2f})"
            print(f"{axis:<9} {size:>9}   {spread:<22}   {beside:<20}   {in_use}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--memory", type=int, default=256, metavar="MIB", help="a process's memory for a step (256)"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps of each kind (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything measured")
    args = parser.parse_args()
    if "RANK" in os.environ:
        result = worker(args.memory, args.rounds)
        if os.environ["RANK"] == "0":
            print(json.dumps(result))
        return
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        port = item.getsockname()[1]
    places = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "4",
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, __file__, "--memory", str(args.memory), "--rounds", str(args.rounds)]
    four = [
        subprocess.Popen(
            words,
            env={**os.environ, **places, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    answers = [item.communicate()[0] for item in four]
    result = json.loads(answers[0])
    if args.json is not None:
        args.json.write_text(json.dumps(result))
    report(result)


if __name__ == "__main__":
    main()

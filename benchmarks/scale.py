"""What several processes cost on one machine: each axis, exactness, a checkpoint, memory beside
``cost``'s formula.

    python benchmarks/scale.py [--rounds 5] [--memory 96] [--only steps memory context] [--cases
    CASE ...] [--json FILE]

Processes of one thread each work in turn with one process alone, so that a busy machine is as busy
for all. Two cores make nothing faster than two times, and four processes only wait for one another:
what can be shown is the processor's time of all together beside that of one, memory, and the
longest row that fits into it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from glassformer import config as c
from glassformer.core.config import run
from glassformer.core.nn import build_model
from glassformer.core.training import train
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.core.training.loop import State
from glassformer.fast.training.allocator import peak_memory, reset_peak_memory
from glassformer.fast.training.execution import ExecutionSettings
from glassformer.runs import run_checkpoints
from glassformer.scale.cost import cost
from glassformer.scale.layout import Layout
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import AXES, Parallel
from glassformer.scale.shard import draw, shard
from glassformer.scale.shared_batches import shared_state

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from many import Processes

MIB = 1 << 20
CASES: dict[str, dict[str, Any]] = {
    "one process": {"data": 1},
    "data 2": {"data": 2},
    "data 2, exact = false": {"data": 2, "exact": False},
    "data 4": {"data": 4},
    "data 4, exact = false": {"data": 4, "exact": False},
    "replicate 2": {"data": 1, "replicate": 2},
    "context 2": {"data": 1, "context": 2},
    "tensor 2": {"data": 1, "tensor": 2},
    "pipeline 2": {"data": 1, "pipeline": 2},
    "data 2 x tensor 2": {"data": 2, "tensor": 2},
    "one process, experts": {"data": 1},
    "expert 2": {"data": 1, "expert": 2},
    "data 2 x expert 2": {"data": 2, "expert": 2},
}
ROWS, PIECES = 8, 4
stored: dict[str, Any] = {}


def processes(name: str) -> int:
    return Parallel(**CASES[name]).size(*AXES)


def model_of(name: str, wide: bool) -> c.Decoder:
    """256 wide, 4 blocks, 256 tokens: 4 M parameters; ``wide`` 512, 8 blocks: 25 M and few
    activations."""
    dim, depth, context = (512, 8, 64) if wide else (256, 4, 256)
    ffn: Any = c.MoE(4, 2, c.GatedMLP(dim)) if "expert" in name else c.GatedMLP(2 * dim)
    stack = c.Stack(depth, (c.Block(c.Attention(8), ffn),), c.Rotary(), last_norm=c.RMSNorm())
    return c.Decoder(dim, context, c.Embed(1024), stack)


def steps(mesh: Mesh, name: str, wide: bool) -> tuple[Any, State]:
    """A training of this case, a step at a time; ``mesh`` are all processes that there are."""
    layout, cfg = Parallel(**CASES[name]), model_of(name, wide)
    individual = Mesh(layout, mesh.rank, mesh.device, mesh.store)
    model = build_model(cfg, seed=0, device=None if individual.alone else "meta")
    options = run.Train(
        steps=1 << 20, batch=ROWS, accumulate=PIECES, schedule=run.Constant(), optimizer=run.AdamW()
    )
    if not individual.alone:
        shard(model, individual, exact=layout.exact)
        model.to_empty(device="cpu")
        draw(model, individual, 0)

    def batches() -> Any:
        draw = torch.Generator().manual_seed(1)
        while True:
            tokens = torch.randint(1024, (ROWS, cfg.context + 1), generator=draw)
            yield Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    feed = batches()
    state = shared_state(model, options.optimizer, feed, individual)
    execution = ExecutionSettings(dtype="float32")
    return train(model, feed, Causal(), options, state=state, execution=execution), state


def step(mesh: Mesh, name: str) -> tuple[float, float]:
    """Seconds of the next step of this case, and those of the processor."""
    if name not in stored:
        stored[name] = steps(mesh, name, False)[0]
    start, in_use = time.perf_counter(), time.process_time()
    next(stored[name])
    return time.perf_counter() - start, time.process_time() - in_use


class Cursor:
    """Stands for batches whose place a checkpoint keeps."""

    def state(self) -> dict[str, int]:
        return {}


def memory(mesh: Mesh, name: str, folder: str) -> dict[str, float]:
    """The most bytes of three steps beyond what a small model left; the formula's; seconds of a
    save; what was left."""
    layout, cfg = Parallel(**CASES[name]), model_of(name, True)
    small = steps(mesh, name, False)[0]
    next(small)  # everything is imported, the kernels' code is there
    small.close()
    result = cost(cfg, ROWS // PIECES)
    memory = Layout(result, layout, PIECES).memory
    reset_peak_memory()
    before = peak_memory()
    training, state = steps(mesh, name, True)
    for _ in range(3):
        next(training)
    most, saved = peak_memory() - before, []
    state.batches = Cursor()
    for number in range(3):
        state.step, start = number, time.perf_counter()
        run_checkpoints.save(Path(folder), state)
        saved.append(time.perf_counter() - start)
    return {"measured": most, "formula": memory, "save": statistics.median(saved), "base": before}


def contexts(mesh: Mesh, limit: int) -> list[tuple[int, int]]:
    """benchmarks/axes.py's: longer and longer rows until a step holds more than ``limit`` bytes a
    process."""
    spec: Any = importlib.util.spec_from_file_location(
        "longer_rows", Path(__file__).with_name("axes.py")
    )
    axes: Any = importlib.util.module_from_spec(spec)  # the tests have a module of that name too
    spec.loader.exec_module(axes)
    return axes.longest(
        Mesh(Parallel(data=1, context=mesh.size), mesh.rank).group("context"), mesh.size, limit
    )


# -------------------------------------------------------------------------------------------
# reports


def measure_steps(rounds: int, names: list[str]) -> dict[str, list[list[float]]]:
    """For each case the seconds and the processor's seconds of its steps, each of all its
    processes, in turn."""
    taken: dict[str, list[list[float]]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        pools = {}
        for size in sorted({processes(name) for name in names}):
            pools[size] = Processes(size)
            stack.callback(pools[size].close)
        for turn in range(rounds + 1):
            for name in names:
                answers = pools[processes(name)].call(step, name=name)
                if turn:  # the first one warms up
                    taken[name].append(
                        [max(wall for wall, _ in answers), sum(cpu for _, cpu in answers)]
                    )
    print(
        f"a step of {ROWS} x 256 tokens in {PIECES} pieces, 4 M parameters, beside one process "
        "in the same turn"
    )
    print(
        f"{'':<24} processes   seconds (range)         beside one           processor's time "
        "of all, beside one"
    )
    for name, steps in taken.items():
        base = taken["one process, experts" if "expert" in name else "one process"]
        wall = [item for item, _ in steps]
        ratio, cpu = (
            [step[i] / alone[i] for step, alone in zip(steps, base, strict=True)] for i in (0, 1)
        )
        print(
            f"{name:<24} {processes(name):>9}   {spread(wall):<22}  {spread(ratio):<19}  "
            f"{spread(cpu)}"
        )
    for size in (
        size for size in (2, 4) if {f"data {size}", f"data {size}, exact = false"} <= taken.keys()
    ):
        pairs = zip(taken[f"data {size}"], taken[f"data {size}, exact = false"], strict=True)
        price = [(item[0] / second[0], item[1] / second[1]) for item, second in pairs]
        words = (
            f"{spread([item for item, _ in price])} of the time, "
            f"{spread([cpu for _, cpu in price])} of the processor's"
        )
        print(f"exactness, {size} processes: {words}")
    return taken


def measure_memory(names: list[str]) -> dict[str, Any]:
    """Each case in processes of its own."""
    print(
        "\nmemory of three steps, the largest of a case's processes: 25 M parameters, 2 x 64 "
        "tokens a piece, AdamW"
    )
    print(f"{'':<24} processes   measured    cost's formula   ratio   a checkpoint   before")
    result = {}
    for name in (name for name in names if "exact" not in name):
        with tempfile.TemporaryDirectory() as folder:
            pool = Processes(processes(name))
            answers = pool.call(memory, name=name, folder=folder)
            pool.close()
        most = max(answer["measured"] for answer in answers)
        result[name] = {**answers[0], "measured": most}
        message, save = answers[0]["formula"], answers[0]["save"]
        numbers = (
            f"{most / MIB:>7.0f} MiB  {message / MIB:>11.0f} MiB   {most / message:>5.2f}   "
            f"{save:>7.2f} s"
        )
        base = f"{answers[0]['base'] / MIB:>5.0f} MiB"
        print(f"{name:<24} {processes(name):>9}   {numbers}   {base}", flush=True)
    return result


def measure_contexts(limit: int) -> dict[int, Any]:
    print(
        f"\nthe longest row whose step (forward, backward) holds at most {limit} MiB a "
        "process, 3 M parameters"
    )
    result = {}
    for size in (1, 2, 4):
        pool = Processes(size)
        result[size] = pool.call(contexts, limit=limit * MIB)[0]
        pool.close()
        (length, most), (more, over) = result[size][-2:]
        print(
            f"{size} processes: {length:,} ({most / MIB:.0f} MiB); {more:,} took {over / MIB:.0f}",
            flush=True,
        )
    return result


def spread(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps of each case (5)")
    parser.add_argument(
        "--memory", type=int, default=96, metavar="MIB", help="a process's memory for a row (96)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=["steps", "memory", "context"],
        choices=["steps", "memory", "context"],
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything measured")
    parser.add_argument(
        "--cases",
        nargs="+",
        default=list(CASES),
        choices=list(CASES),
        metavar="CASE",
        help="some rows",
    )
    args = parser.parse_args()
    beside = {"one process, experts" if "expert" in name else "one process" for name in args.cases}
    names = [name for name in CASES if name in beside.union(args.cases)]
    start, result = time.monotonic(), dict[str, Any]()
    if "steps" in args.only:
        result["steps"] = measure_steps(args.rounds, names)
    if "memory" in args.only:
        result["memory"] = measure_memory(names)
    if "context" in args.only:
        result["contexts"] = measure_contexts(args.memory)
    print(f"\n{time.monotonic() - start:.0f} s in all")
    if args.json is not None:
        args.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()

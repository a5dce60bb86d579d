"""Which number format and whether to compile: the measurements behind the table in
``fast/training/execution.py``.

    python benchmarks/plan.py                       a step of each shape in fp32 and bf16, in turns, one thread
    python benchmarks/plan.py --compile             also compiled, with what compiling costs

On a CPU the time is the processor's own, so that a busy machine disturbs little. Best of the
rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from glassformer import config
from glassformer.core.config import run
from glassformer.core.config.serial import change
from glassformer.core.nn import build_model
from glassformer.core.training import train
from glassformer.core.training.batches import Batch
from glassformer.core.training.loop import State
from glassformer.core.training.optimizer import Optimizer
from glassformer.families import find
from glassformer.fast.training.execution import ExecutionSettings

CONTEXT = 128


def decoder(dim: int, depth: int = 4, vocab: int = 2048) -> config.Model:
    heads = max(1, dim // 32)
    expected = {"dim": dim, "decoder.depth": depth, "embed.vocab": vocab, "context": CONTEXT}
    return change(find("glass/1m"), {**expected, "decoder.pattern.attention.heads": heads})


def shapes() -> dict[str, tuple[config.Model, int]]:
    """Measured models, each with its rows a step."""
    result = {
        f"dim {dim}, {rows} rows": (decoder(dim), rows)
        for dim in (64, 128, 256, 384)
        for rows in (4, 16, 64)
    }
    result["dim 64, 65 characters, 16 rows"] = decoder(64, vocab=65), 16
    result["dim 128, 65 characters, 16 rows"] = decoder(128, vocab=65), 16
    result["dim 512, 16 rows"] = decoder(512), 16
    return result


class Endless:
    """The same rows of random tokens again and again."""

    def __init__(self, rows: int, vocab: int) -> None:
        tokens = torch.randint(
            vocab, (rows, CONTEXT + 1), generator=torch.Generator().manual_seed(0)
        )
        self.batch = Batch(tokens[:, :-1], tokens[:, 1:].clone())

    def __iter__(self) -> Endless:
        return self

    def __next__(self) -> Batch:
        return self.batch

    def state(self) -> dict[str, int]:
        return {}


def stepper(
    result: config.Model, rows: int, plan: ExecutionSettings, device: str
) -> Callable[[], object]:
    """Something that makes one training step whenever it is called."""
    model = build_model(result, device=device, seed=0)
    batches = Endless(rows, result.embed.vocab)
    batches.batch = batches.batch.to(device)
    options = run.Train(steps=10**6, batch=rows, optimizer=run.FROM_SCRATCH)
    steps = train(
        model,
        batches,
        settings=options,
        state=State(model, Optimizer(model, options.optimizer), batches),
        execution=plan,
    )
    return lambda: next(steps)


def seconds(work: Callable[[], object], device: str, least: float) -> float:
    """The mean time of a call over at least so many seconds."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started, calls = clock(), 0
    while clock() - started < least:
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        calls += 1
    return (clock() - started) / calls


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    reader.add_argument("--rounds", type=int, default=4)
    reader.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    reader.add_argument("--only", default="", help="shapes whose name holds this")
    reader.add_argument("--compile", action="store_true")
    args = reader.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    plans = {"fp32": ExecutionSettings("float32"), "bf16": ExecutionSettings("bfloat16")}
    if args.compile:
        plans |= {
            f"{name} compiled": ExecutionSettings(plan.dtype, compile=True)
            for name, plan in list(plans.items())
        }
    for name, (result, rows) in shapes().items():
        if args.only not in name:
            continue
        works, first = {}, {}
        for kind, plan in plans.items():
            works[kind] = stepper(result, rows, plan, args.device)
            start = time.perf_counter()
            works[kind](), works[kind]()
            first[kind] = time.perf_counter() - start
        best = dict.fromkeys(plans, float("inf"))
        for _ in range(args.rounds):
            for kind, work in works.items():
                best[kind] = min(best[kind], seconds(work, args.device, args.seconds))
        output = "  ".join(
            f"{kind} {best[kind] * 1e3:7.2f} ms ({first[kind]:.1f} s first)" for kind in plans
        )
        print(f"{name:34}{output}  fp32/bf16 {best['fp32'] / best['bf16']:.2f}", flush=True)


if __name__ == "__main__":
    main()

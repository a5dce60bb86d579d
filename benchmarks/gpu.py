"""Everything that is measured on an NVIDIA GPU, a table of it: training, its speed, decoding.
Command by command:

    python benchmarks/gpu.py --rehearse                                                  # every line of it, on a CPU
    python benchmarks/gpu.py --only learn --rounds 1
    python benchmarks/gpu.py --only decode --rounds 1 --shapes 124m
    python benchmarks/gpu.py --only decode --rounds 1 --shapes 1.1b
    python benchmarks/gpu.py --only engine --rounds 1 --shapes 124m
    python benchmarks/gpu.py --only engine --rounds 1 --shapes 1.1b
    python benchmarks/gpu.py --only train --rounds 1 --shapes 124m --batches 16 32 64 --contenders
    ours nanoGPT python benchmarks/gpu.py --only train --rounds 1 --shapes 124m --batches 32
    --contenders "ours compiled" python benchmarks/gpu.py --only train --rounds 1 --shapes 124m
    --batches 32 --contenders "nanoGPT compiled" python benchmarks/gpu.py --only train --rounds 1
    --shapes packed --batches 16 32 --contenders ours python benchmarks/gpu.py --only
    train --rounds 1 --shapes moe --batches 16 32 --contenders ours "ours compiled" python
    benchmarks/gpu.py --only train --rounds 1 --shapes 350m --batches 16 --contenders ours "ours by
    blocks" python benchmarks/gpu.py --only train --rounds 1 --shapes 1b --batches 8 --contenders
    ours "ours compiled"

with --nanogpt FOLDER where nanoGPT is among them. Each is meant to take less than ten minutes; none
has run on a GPU.

learn   seconds to a validation loss of 1.4697 on Shakespeare's characters: ours (runs/shakespeare-gpu.toml) beside
        nanoGPT's GPU settings, whole processes; ours must need at most a third.
train   tokens/s and the share of the card's bf16 peak for the 124M, 350M and 1B shapes, a mixture of experts (moe) and
        packed documents with grouped heads (packed), at 1,024 tokens, each at the best of the
        batches that fit, eager and compiled (whole, and by blocks), beside nanoGPT. FLOPs are
        counted as PaLM, nanoGPT and llm.c count them: 6 a weight that a token meets, and 12 layers
        width context for attention, whose mask is not taken off.
engine  tokens/s of 32 prompts of 128 tokens continued by 128, by the engine that serves, beside ``generate`` of all in
        one batch and transformers of the same batch.
decode  tokens/s of one sequence for GPT-2's 124M shape and a Llama of 1.1 B parameters in bf16, and the share of the
        card's memory bandwidth that reading the weights takes, beside transformers with its static
        cache.

Peaks are the data sheet's for this card (dense, no sparsity) where its name is known, else what a
large product and a copy measure here; both are printed. Every measurement is a process of its own,
so that none leaves memory behind; contenders alternate for --rounds. A process compiles anew for
each of --batches. --rehearse runs every line of it in a minute on a CPU with toy shapes: the
figures mean nothing, but it must come through. Exit 1 when a measurement fails or an aim is missed,
2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shakespeare

ROOT = Path(__file__).resolve().parents[1]
TARGET = 1.4697
MEASURED = ("learn", "train", "decode", "engine")
BATCHES = (4, 8, 16, 32, 64)
DECODED = {"124m": "gpt2", "1.1b": "llama"}
CONTENDERS = (
    "ours",
    "ours compiled",
    "ours by blocks",
    "nanoGPT",
    "nanoGPT compiled",
)


@dataclass(frozen=True)
class Shape:
    """Shape of the trained model: ``experts`` of which each token meets two, half as wide as the
    feed-forward; or documents of a quarter of the context, ``packed``, under a third of the heads
    for keys and values."""

    depth: int
    heads: int
    dim: int
    vocab: int = 50304
    experts: int = 0
    packed: bool = False

    def flops(self, context: int) -> int:
        """FLOPs of a token, forward and backward."""
        attention = 2 * self.dim**2 + 2 * self.dim**2 // (3 if self.packed else 1)
        met = self.depth * (attention + 8 * self.dim**2) + self.vocab * self.dim
        return 6 * met + 12 * self.depth * self.dim * context


SHAPES = {
    "124m": Shape(12, 12, 768),
    "350m": Shape(24, 16, 1024),
    "1b": Shape(24, 16, 1792),
    "moe": Shape(12, 12, 768, experts=8),
    "packed": Shape(12, 12, 768, packed=True),
}
TOYS = {
    "toy": Shape(2, 3, 48, 512),
    "toy moe": Shape(2, 3, 48, 512, 4),
    "toy packed": Shape(2, 3, 48, 512, 0, True),
}

SHEETS = {
    "B200": (2250, 8.0),
    "H200 NVL": (835, 4.8),
    "H200": (989, 4.8),
    "GH200": (989, 4.0),
    "H100 NVL": (835, 3.9),
    "H100 PCIe": (756, 2.0),
    "H100": (989, 3.35),  # SXM, which torch calls "NVIDIA H100 80GB HBM3"
    "A100-SXM4-80GB": (312, 2.039),
    "A100 80GB PCIe": (312, 1.935),
    "A100": (312, 1.555),
    "L40S": (362, 0.864),
    "L4": (121, 0.3),
    "A10": (125, 0.6),
    "RTX 4090": (165, 1.008),
}
"""NVIDIA's data sheets: TFLOP/s of dense bf16 and TB/s of memory, by words of the name that torch
gives."""


def sheet(name: str) -> tuple[float, float] | None:
    """FLOP/s and bytes/s of the card of this name: of the entries that it has as words, the
    longest. None: not known, or a part of a card."""
    cards = [card for card in SHEETS if re.search(rf"\b{card}\b", name)]
    if not cards or "MIG" in name:
        return None
    teraflops, terabytes = SHEETS[max(cards, key=len)]
    return teraflops * 1e12, terabytes * 1e12


# ------------------------------------------------------------------- what one process measures


def device(rehearse: bool) -> str:
    return "cpu" if rehearse else "cuda"


def clock(work: Callable[[], object], places: str) -> float:
    """Seconds, the device's queue emptied before and after."""
    import torch

    if places == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if places == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peaks(args: argparse.Namespace) -> dict[str, Any]:
    """The fastest measured bf16 matrix product (FLOP/s) and copy (bytes read and written a
    second)."""
    import torch

    places, size = device(args.rehearse), 512 if args.rehearse else 8192
    remaining, right = (
        torch.randn(size, size, device=places, dtype=torch.bfloat16) for _ in range(2)
    )
    block = torch.empty((1 << 22) if args.rehearse else (1 << 30), device=places, dtype=torch.uint8)
    second = torch.empty_like(block)
    product = min(clock(lambda: remaining @ right, places) for _ in range(10))
    copy = min(clock(lambda: second.copy_(block), places) for _ in range(10))
    name = torch.cuda.get_device_name() if places == "cuda" else "CPU, a rehearsal"
    return {"flops": 2 * size**3 / product, "bytes": 2 * block.numel() / copy, "device": name}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """The best tokens/s of one contender at one shape over the batches that fit."""
    import torch

    places, context = device(args.rehearse), 64 if args.rehearse else 1024
    shape = (TOYS if args.rehearse else SHAPES)[args.shape]
    best: dict[str, Any] = {"tokens": 0.0}
    for batch in BATCHES[:2] if args.rehearse else args.batches:
        try:
            step = (nanogpt_step if args.who.startswith("nanoGPT") else our_step)(
                args, shape, context, batch, places
            )
            for _ in range(3):
                step()
            rate = (
                batch
                * context
                / statistics.median(clock(step, places) for _ in range(3 if args.rehearse else 10))
            )
        except torch.OutOfMemoryError:
            break
        if rate > best["tokens"]:
            best = {"tokens": rate, "batch": batch}
    best["flops"] = shape.flops(context) * best["tokens"]
    best["memory"] = torch.cuda.max_memory_allocated() / 2**30 if places == "cuda" else 0.0
    return best


def our_step(
    args: argparse.Namespace, shape: Shape, context: int, batch: int, places: str
) -> Callable[[], object]:
    """One step of our trainer after another."""
    import itertools

    import torch

    from glassformer import config
    from glassformer.core.config import run
    from glassformer.core.nn import build_model
    from glassformer.core.training import train as steps
    from glassformer.core.training.batches import Batch

    plain: Any = config.MLP(hidden=4 * shape.dim)
    if shape.experts:
        plain = config.MoE(
            experts=shape.experts,
            top_k=2,
            expert=config.MLP(hidden=2 * shape.dim),
            balance_loss=0.01,
        )
    attention = config.Attention(
        heads=shape.heads, kv_heads=shape.heads // 3 if shape.packed else None
    )
    norm = config.LayerNorm(bias=False)
    stack = config.Stack(
        depth=shape.depth,
        pattern=(config.Block(attention=attention, feedforward=plain, norm=norm),),
        position=config.Learned(length=context),
        last_norm=norm,
    )
    decoder = config.Decoder(
        dim=shape.dim, context=context, embed=config.Embed(vocab=shape.vocab), decoder=stack
    )
    model = build_model(decoder, device=places, seed=0)
    compiled = {"compiled": "yes", "blocks": "blocks"}.get(args.who.split()[-1], "no")
    settings = run.Train(
        steps=10**9, batch=batch, optimizer=run.AdamW(lr=6e-4), dtype="bfloat16", compile=compiled
    )
    draw = torch.Generator().manual_seed(0)
    group = [torch.randint(shape.vocab, (batch, context + 1), generator=draw) for _ in range(8)]
    place = torch.arange(context).expand(batch, -1)
    packed = (
        {"pos": place % (context // 4), "document_ids": place // (context // 4)}
        if shape.packed
        else {}
    )
    feed = (
        Batch(tokens=piece[:, :-1], targets=piece[:, 1:], **packed)
        for piece in itertools.cycle(group)
    )
    going = steps(model, feed, settings=settings)
    return lambda: next(going)


def nanogpt_step(
    args: argparse.Namespace, shape: Shape, context: int, batch: int, places: str
) -> Callable[[], object]:
    """One step of nanoGPT's train.py after another, without what it logs."""
    import torch

    sys.path.insert(0, str(args.nanogpt))
    from model import GPT, GPTConfig

    output, sys.stdout = sys.stdout, sys.stderr  # it prints
    sizes = {
        "n_layer": shape.depth,
        "n_head": shape.heads,
        "n_embd": shape.dim,
        "vocab_size": shape.vocab,
    }
    plain = GPT(GPTConfig(block_size=context, dropout=0.0, bias=False, **sizes)).to(places)
    optimizer = plain.configure_optimizers(0.1, 6e-4, (0.9, 0.95), places)
    sys.stdout = output
    model = torch.compile(plain) if args.who.endswith("compiled") else plain
    group = torch.randint(shape.vocab, (batch, context + 1)).to(places)

    def step() -> None:
        with torch.autocast(places, torch.bfloat16):
            loss = model(group[:, :-1].contiguous(), group[:, 1:].contiguous())[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def decode(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens/s of one sequence, and the bytes of the weights."""
    return continued(args, 1, 16 if args.rehearse else 128, 8 if args.rehearse else 256)


def engine(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens/s of many sequences, and the bytes of the weights."""
    if args.rehearse:  # what a GPU gets, on a CPU
        from glassformer.serve.engine import page_memory

        page_memory.by_kernels = lambda model: False
    return continued(args, *((4, 16, 8) if args.rehearse else (32, 128, 128)))


def continued(args: argparse.Namespace, rows: int, length: int, count: int) -> dict[str, Any]:
    """Tokens/s of ``rows`` prompts of so many tokens, continued by ``count``, and the bytes of the
    weights."""
    import generate
    import torch

    places = device(args.rehearse)
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(256, (rows, length), generator=draw).tolist()
    with tempfile.TemporaryDirectory() as folder:
        saved = generate.saved(
            "gpt2" if args.rehearse else DECODED[args.shape], torch.bfloat16, Path(folder)
        )
        if args.who == "transformers":
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16).to(places)
            ids = torch.tensor(prompts, device=places)
            static = {} if args.rehearse else {"cache_implementation": "static"}

            def work() -> object:
                return model.generate(
                    ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, **static
                )
        else:
            import glassformer
            from glassformer.core.generation import Sampling
            from glassformer.serve.engine import Engine, Request

            model, _ = glassformer.load(str(saved), device=places)
            serving = (
                Engine(model, lookup=False, max_sequences=rows) if args.who == "engine" else None
            )

            def work() -> object:
                if serving is None:
                    return glassformer.generate(
                        model, None, prompts, max_new=count, temperature=0, eos=()
                    ).run()
                requests = [
                    Request(prompt, sampling=Sampling(0), max_new=count, stop_tokens=())
                    for prompt in prompts
                ]
                return [
                    handle.result() for handle in [serving.submit(request) for request in requests]
                ]

        for _ in range(1 if args.rehearse else 3):
            work()
        seconds = statistics.median(clock(work, places) for _ in range(1 if args.rehearse else 5))
        total = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"tokens": rows * count / seconds, "bytes": total}


PARTS = {"peaks": peaks, "train": train, "decode": decode, "engine": engine}


# ------------------------------------------------------------------------------------ the table


def measure(
    args: argparse.Namespace, name: str, who: str = "", shape: str = ""
) -> dict[str, Any] | None:
    """One measurement in a process of its own; None where it failed, with its last words
    printed."""
    command = [sys.executable, __file__, "--part", name, "--who", who, "--shape", shape]
    command += ["--nanogpt", str(args.nanogpt)] if args.nanogpt else []
    command += ["--rehearse"] if args.rehearse else []
    command += ["--batches", *map(str, args.batches)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "0"}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(
            f"{name} {who} {shape} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}",
            flush=True,
        )
        return None
    data: dict[str, Any] = json.loads(lines[-1])
    return data


def best_of(
    args: argparse.Namespace, piece: str, names: list[str], shape: str
) -> dict[str, dict[str, Any]]:
    """The median round of each contender, who take turns."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            result = measure(args, piece, name, shape)
            if result is not None:
                rounds[name].append(result)
    return {
        n: sorted(f, key=lambda item: item["tokens"])[len(f) // 2] for n, f in rounds.items() if f
    }


def learn(args: argparse.Namespace) -> bool:
    """Seconds to the loss, whole processes."""
    shakespeare.TARGET = 9.0 if args.rehearse else TARGET
    data = shakespeare.find_text(None)
    steps = 4 if args.rehearse else None
    local = [
        shakespeare.our_training("shakespeare-gpu.toml", data, steps) for _ in range(args.rounds)
    ]
    reached = [item.reached for item in local if item.reached is not None]
    row = (
        f"{statistics.median(reached):.1f} s to the loss"
        if len(reached) == len(local)
        else "missed"
    )
    print(
        f"| learn | ours, {local[0].parameters:,} parameters | {row} | {local[0].loss:.4f} at "
        "the end |",
        flush=True,
    )
    if not args.nanogpt:
        return len(reached) == len(local)
    small = {
        "device": "cpu",
        "compile": False,
        "max_iters": 2,
        "eval_interval": 2,
        "eval_iters": 1,
        "n_layer": 1,
    }
    reference = shakespeare.nanogpt(args.nanogpt, data, small if args.rehearse else {})
    print(
        f"| learn | nanoGPT's GPU settings | {reference.seconds:.1f} s in all | {reference.loss:.4f} "
        "at the end |",
        flush=True,
    )
    return bool(reached) and statistics.median(reached) <= reference.seconds / 3


def main() -> int:
    """Measure what was asked for, a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--only", nargs="+", choices=MEASURED, default=MEASURED, help="all")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (3)")
    parser.add_argument(
        "--shapes", nargs="+", choices=(*SHAPES, *DECODED), default=(*SHAPES, *DECODED), help="all"
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, default=BATCHES, help="rows a step that are tried"
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="of train: all"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="toy shapes on a CPU, to see that it runs"
    )
    for hidden in ("--part", "--who", "--shape"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part](args)), flush=True)
        return 0
    top = measure(args, "peaks")
    if top is None:
        return 2
    print(
        f"{top['device']}: measured {top['flops'] / 1e12:.3g} TFLOP/s in bf16, "
        f"{top['bytes'] / 1e9:.4g} GB/s"
    )
    output = sheet(top["device"])
    if output is not None:
        top["flops"], top["bytes"] = output
    from_where = "measured: the card is not in SHEETS" if output is None else "of the data sheet"
    print(
        f"Peaks {from_where}: {top['flops'] / 1e12:.3g} TFLOP/s, {top['bytes'] / 1e9:.4g} GB/s\n",
        flush=True,
    )
    print("| part | who | figure | of the peak |\n|---|---|---|---|", flush=True)
    well = True
    if "learn" in args.only:
        well &= learn(args)
    if "train" in args.only:
        for shape, value in (
            TOYS if args.rehearse else {n: s for n, s in SHAPES.items() if n in args.shapes}
        ).items():
            mixed = bool(value.experts or value.packed)
            reference = args.nanogpt and not mixed
            names = [n for n in args.contenders if reference or "nanoGPT" not in n]
            result = best_of(args, "train", names, shape)
            well &= len(result) == len(names)
            for name, item in result.items():
                share = f"{item['flops'] / top['flops']:.1%} of the peak, {item['memory']:.1f} GiB"
                batch = item.get("batch", 0)
                print(
                    f"| train {shape} | {name}, batch {batch} | {item['tokens']:,.0f} tokens/s | "
                    f"{share} |",
                    flush=True,
                )
    if "decode" in args.only:
        for shape in [item for item in DECODED if item in args.shapes][
            : 1 if args.rehearse else None
        ]:
            result = best_of(args, "decode", ["ours", "transformers"], shape)
            well &= len(result) == 2
            for name, item in result.items():
                share = f"{item['tokens'] * item['bytes'] / top['bytes']:.1%} of the bandwidth"
                print(
                    f"| decode {shape} | {name} | {item['tokens']:.1f} tokens/s | {share} |",
                    flush=True,
                )
    if "engine" in args.only:
        for shape in [item for item in DECODED if item in args.shapes][
            : 1 if args.rehearse else None
        ]:
            result = best_of(args, "engine", ["engine", "generate", "transformers"], shape)
            well &= len(result) == 3
            for name, item in result.items():
                print(f"| engine {shape} | {name} | {item['tokens']:,.0f} tokens/s | |", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Seconds a training step of a mixture, beside a dense model of the same active FLOPs and nanoMoE's
own.

    python benchmarks/experts.py [--nanomoe FOLDER] [--shape makemoe | nanomoe] [--rounds 7]
    [--threads 2] [--clock cpu]

makemoe: 8 layers 128 wide, experts 512 wide in every block, batch 32 x 64; nanomoe: 6 layers 384
wide, experts 1,536 wide in every second block, batch 8 x 256. Both have 8 experts, 2 for each
token, characters, AdamW and clipping at 1. The dense model's feed-forwards are twice as wide as one
expert. First our mixture is given nanoMoE's weights and must write its logits. Then every contender
takes a step in turn, so that all meet the same weather. On a busy machine use --threads 1 --clock
cpu: the processor's seconds are counted, and nobody waits for another thread. Exit 1 when our
mixture takes more than 1.25 times our dense model.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from glassformer import config
from glassformer.core.config import run
from glassformer.core.nn import build_model
from glassformer.core.training import train
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.fast.training.execution import choose_execution
from glassformer.scale.cost import cost

# layers, heads, width, expert's width, dense blocks among the mixtures, batch, context, steps a
# turn
SHAPES = {
    "makemoe": (8, 8, 128, 512, 0, 32, 64, 3),
    "nanomoe": (6, 6, 384, 1536, 1, 8, 256, 1),
}
VOCAB, EXPERTS, TOP, CAPACITY = 65, 8, 2, 1.25
WARM = 15  # steps before the first turn
RATE, BETAS, DECAY, CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0


def shape_of(name: str, mixture: bool, capacity: float | None = None) -> config.Decoder:
    """nanoMoE's model in our words; without ``mixture`` the dense one of the same active FLOPs."""
    depth, heads, dim, hidden, between, _, context, _ = SHAPES[name]
    norm = config.LayerNorm(bias=False)
    expert = config.MLP(hidden, "gelu")
    mixed = config.MoE(
        EXPERTS, TOP, expert, balance_loss=0.01, z_loss=0.001, capacity_factor=capacity
    )
    first = config.Block(
        config.Attention(heads), mixed if mixture else config.MLP(TOP * hidden, "gelu"), norm
    )
    pattern = (first, *[config.Block(config.Attention(heads), expert, norm)] * between)
    stack = config.Stack(depth, pattern, config.Learned(context), last_norm=norm)
    return config.Decoder(dim, context, config.Embed(VOCAB), stack)


def batches(name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and targets, the same for everyone: drawn, with the first characters more frequent
    than the last."""
    *_, batch, context, _ = SHAPES[name]
    draw = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, VOCAB + 1)
    while True:
        rows = torch.multinomial(
            frequency, batch * (context + 1), replacement=True, generator=draw
        ).view(batch, -1)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def our_training(name: str, mixture: bool, dtype: str) -> Iterator[float]:
    """Our training loop."""
    model = build_model(shape_of(name, mixture), seed=0)
    feed = (Batch(*pair) for pair in batches(name))
    adamw = run.AdamW(RATE, BETAS, weight_decay=DECAY)
    settings = run.Train(
        steps=10**9,
        batch=1,
        optimizer=adamw,
        schedule=run.Constant(),
        clip=CLIP,
        dtype=dtype,
        compile="no",
    )
    plan = choose_execution(model, next(feed), Causal(), settings)
    return (step.loss for step in train(model, feed, settings=settings, execution=plan))


def nanomoe(name: str, dtype: str) -> Iterator[float]:
    """nanoMoE's model, losses and optimizer in the loop of its train.py, without what it logs and
    evaluates."""
    with contextlib.redirect_stdout(sys.stderr):  # it prints
        model = their_model(name)
        optimizer = model.configure_optimizers(DECAY, RATE, BETAS, "cpu")
    for tokens, targets in batches(name):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(tokens, targets)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def their_model(name: str) -> Any:
    """nanoMoE's own, with the settings of its config/train_nano_moe.py but for the size."""
    from model import GPT, GPTConfig

    depth, heads, dim, _, between, _, context, _ = SHAPES[name]
    mixture = {"n_exp": EXPERTS, "top_k": TOP, "stride": between + 1, "train_capacity": CAPACITY}
    losses = {
        "use_aux_loss": True,
        "use_router_z_loss": True,
        "aux_loss_weight": 0.01,
        "router_z_loss_weight": 0.001,
    }
    options = {"dropout": 0.0, "bias": False, "router_use_full_prec": True}
    torch.manual_seed(0)
    return GPT(GPTConfig(context, VOCAB, depth, heads, dim, **mixture, **losses, **options))


def logit_distance(name: str) -> float:
    """Largest distance of our logits from nanoMoE's in training mode, with its capacity and weights
    in both."""
    with contextlib.redirect_stdout(sys.stderr):
        reference = their_model(name).double()
    model: Any = build_model(shape_of(name, mixture=True, capacity=CAPACITY), dtype=torch.float64)
    state = {
        "embed.token.weight": reference.transformer.wte.weight,
        "decoder.last_norm.weight": reference.transformer.ln_f.weight,
    }
    state["decoder.position.weight"] = reference.transformer.wpe.weight
    for index, block in enumerate(reference.transformer.h):
        individual = {
            f"attn.{piece}.weight": w
            for piece, w in zip("qkv", block.attn.c_attn.weight.chunk(3), strict=True)
        }
        individual |= {
            "attn.out.weight": block.attn.c_proj.weight,
            "attn_norm.weight": block.ln_1.weight,
        }
        individual["ffn_norm.weight"] = block.ln_2.weight
        if hasattr(block.mlp, "router"):
            experts = block.mlp.experts
            individual |= {
                "ffn.router.weight": block.mlp.router.w_g.weight,
                "ffn.up": experts.c_fc.mT,
            }
            individual["ffn.down"] = experts.c_proj.mT
        else:
            individual |= {
                "ffn.up.weight": block.mlp.c_fc.weight,
                "ffn.down.weight": block.mlp.c_proj.weight,
            }
        state |= {f"decoder.blocks.{index}.{path}": weight for path, weight in individual.items()}
    model.load_state_dict(state)
    tokens, targets = next(batches(name))
    with torch.no_grad():
        output = model.train()(tokens)
        dropped = [f"{100 * float(share):.1f} %" for share in output.metrics["dropped"]]
        print(f"nanoMoE's weights in ours, choices dropped by block: {', '.join(dropped)}")
        return float((output.logits - reference.train()(tokens, targets)[0]).abs().max())


def main() -> int:
    """Check, measure, print, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanomoe", type=Path, help="a checkout of nanoMoE")
    parser.add_argument("--shape", choices=SHAPES, default="nanomoe")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (7)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine that others use"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    contenders = {
        "ours": our_training(args.shape, True, args.dtype),
        "ours, dense": our_training(args.shape, False, args.dtype),
    }
    if args.nanomoe:
        sys.path.insert(0, str(args.nanomoe))
        print(f"largest difference of the logits: {logit_distance(args.shape):.1e}")
        contenders["nanoMoE"] = nanomoe(args.shape, args.dtype)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    turn = SHAPES[args.shape][-1]
    # in bf16 a mixture's first steps write the programs for their shapes
    for name in ("ours", "ours, dense"):
        for _ in range(WARM):
            next(contenders[name])
    for number in range(args.rounds + 1):
        for name, steps in contenders.items():
            started = clock()
            for _ in range(turn):
                next(steps)
            if number:  # the first warms up
                seconds[name].append((clock() - started) / turn)
    for mixture in (True, False):
        price = cost(shape_of(args.shape, mixture))
        print(
            f"{price.total:,} parameters, {price.active:,} active, {price.training_flops:,.0f} "
            "FLOPs a token"
        )
    dense = seconds["ours, dense"]
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, dense, strict=True))
        around = f"{1000 * min(taken):.0f} to {1000 * max(taken):.0f}"
        print(
            f"{name:12} {1000 * statistics.median(taken):7.1f} ms a step ({around}), "
            f"{ratio:.2f} of our dense model"
        )
    ours_to_dense = statistics.median(a / b for a, b in zip(seconds["ours"], dense, strict=True))
    return 0 if ours_to_dense <= 1.25 else 1


if __name__ == "__main__":
    raise SystemExit(main())

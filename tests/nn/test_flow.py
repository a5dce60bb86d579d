"""What is added to the flow arrives, also where FSDP2 wraps each block."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.nn import Flow, build_model
from glassformer.core.nn.flow import document_starts

MIXED = tiny.block(c.Attention(4, 2), c.MoE(4, 2, c.GatedMLP(32), balance_loss=1.0, z_loss=0.1))
DEEP = tiny.decoder(MIXED, position=c.Rotary(), depth=3)
SIDES = (
    c.Stack(2, (MIXED,), c.Rotary(), causal=False),
    c.Stack(2, (tiny.replace(MIXED, cross=c.Attention(4)),), c.Rotary()),
)
MODELS = {
    "decoder": DEEP,
    "both sides": c.EncoderDecoder(
        tiny.DIM, tiny.CONTEXT, c.Embed(tiny.VOCAB), *SIDES, c.Head(), tiny.WIDE
    ),
}
PROCESS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from nn.test_flow import MODELS, losses
from glassformer.core.nn import build_model
dist.init_process_group("gloo")
for name, config in MODELS.items():
    model = build_model(config, seed=1)
    for block in [*getattr(model, "encoder", model.decoder).blocks, *model.decoder.blocks]:
        if not hasattr(block, "unshard"):
            fully_shard(block)
    fully_shard(model)
    aux, norm = losses(model)
    if dist.get_rank() == 0:
        print(name, *(f"{value:.9g}" for value in (*aux.values(), norm)), sep=",")
dist.destroy_process_group()
"""


def losses(model: torch.nn.Module) -> tuple[dict[str, float], float]:
    """The auxiliary losses of one batch, and the size of the first router's gradient, most of which
    comes of them."""
    args = (tiny.tokens(),) * (2 if hasattr(model, "encoder") else 1)
    out = model(*args)
    (sum(out.aux.values()) + 1e-3 * out.logits.square().mean()).backward()
    first = next(
        weight for name, weight in model.named_parameters() if name.endswith("ffn.router.weight")
    )
    grad = getattr(first.grad, "full_tensor", lambda: first.grad)()
    return {name: loss.item() for name, loss in sorted(out.aux.items())}, grad.norm().item()


def test_the_flow_is_no_dataclass():
    """FSDP2 copies dataclasses that hold tensors with gradients; the proof is the slow one
    below."""
    assert not dataclasses.is_dataclass(Flow)


@pytest.mark.slow
def test_auxiliary_losses_under_fsdp_are_those_of_one_process():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    world = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            env={**os.environ, **world, "RANK": str(rank), "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    messages, wrong = [], ""
    for process in started:
        out, err = process.communicate(timeout=180)
        messages.append(out)
        wrong += err if process.returncode else ""
    assert not wrong, wrong[-2000:]
    for line in messages[0].splitlines():
        name, *values = line.split(",")
        aux, norm = losses(build_model(MODELS[name], seed=1))
        assert [float(value) for value in values] == pytest.approx(
            [*aux.values(), norm], rel=1e-5
        ), name
    assert messages[0].count("\n") == len(MODELS)


def test_where_documents_begin():
    """At position 0, and where a row's first token goes on from elsewhere; padding begins none."""
    pos = torch.tensor(
        [[3, 4, 0, 1], [-1, -1, 0, 1], [0, 1, 2, -1], [-1, 5, -1, 6], [-1, -1, -1, -1]]
    )
    begins = [[1, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert document_starts(pos).tolist() == [list(map(bool, row)) for row in begins]

"""N processes make the bits of one that works through the same micro-batches, with a sharded_optimizer too."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.config import run
from glassformer.core.nn import build_model
from glassformer.core.training import train
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.families.mechanisms import LoopedStack
from glassformer.fast.training.execution import ExecutionSettings
from glassformer.scale import owners, shard
from glassformer.scale.mesh import ALONE, Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.place import BoxShare
from glassformer.scale.shared_batches import shared_state
from seeding import generator_from

ADAMW = run.AdamW(lr=1e-2)
MUON = run.Muon(lr=1e-2)
ODD = c.Decoder(
    20,
    24,
    c.Embed(51),
    c.Stack(
        2,
        (c.Block(c.Attention(2, head_dim=6, bias=True), c.GatedMLP(27, bias=True)),),
        c.Rotary(),
        dropout=0.2,
    ),
    c.Head(tied=False, bias=True),
)
LOOPED = tiny.decoder(tiny.LLAMA)
LOOPED = replace(LOOPED, decoder=LoopedStack(**vars(LOOPED.decoder)))
MODELS = {**tiny.DECODERS, "odd": ODD, "looped": LOOPED}


def batches(rows, vocab, length=16):
    draw = generator_from(1)
    while True:
        tokens = torch.randint(vocab, (rows, length + 1), generator=draw)
        targets = tokens[:, 1:].clone()
        targets[torch.rand(targets.shape, generator=draw) < 0.2] = -1
        yield Batch(tokens[:, :-1].contiguous(), targets)


def learned(mesh, name, dtype, optimizer, steps=3, axes=None, exact=True):
    """Digests of weights and moments after some steps, the losses and norms on the way; whole ones
    as lists."""
    torch.set_num_threads(1)
    mesh = mesh if axes is None else Mesh(Parallel(**axes), mesh.rank, mesh.device, mesh.store)
    cfg = MODELS[name]
    model = build_model(cfg, seed=0)
    options = run.Train(steps=steps, batch=9, accumulate=8, schedule=run.Constant(), clip=0.5)
    if not mesh.alone:
        shard.shard(model, mesh, dtype, exact)
    feed = batches(options.batch, cfg.embed.vocab)
    state = shared_state(model, ADAMW if optimizer == "AdamW" else MUON, feed, mesh)
    execution = ExecutionSettings(dtype=dtype)
    observed = [
        [s.loss, s.grad_norm, s.metrics]
        for s in train(model, feed, Causal(), options, state=state, execution=execution)
    ]
    actual_result = {name: full_weight(weight) for name, weight in model.named_parameters()}
    for key, value in state.optimizer.state().items():
        actual_result[key] = gathered(value, mesh) if isinstance(value, BoxShare) else value
    return observed, {
        key: hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()[:12]
        for key, x in actual_result.items()
    }


def full_weight(weight):
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def gathered(piece, mesh):
    zeros = torch.zeros(math.prod(piece.shape))
    for low, count in piece.place.runs():
        zeros[low : low + count] = piece.numbers.reshape(-1)
    if mesh.extent("data") > 1:
        torch.distributed.all_reduce(zeros, group=mesh.group("data"))
    return zeros.view(piece.shape)


def test_owners_have_equal_shares_and_every_matrix_has_one():
    """Owners give the largest stack away first; what each holds of a matrix adds up to the whole of
    it."""
    windows = [
        type("Weight", (), {"shape": shape, "size": math.prod(shape), "cut": None})
        for shape in SHAPES
    ]
    alike = owners.Owners(
        Mesh(Parallel(data=3)), windows, lambda shapes: [[i] for i in range(len(shapes))]
    )
    load = [0, 0, 0]
    for stack, owner in zip(alike.stacks, alike.owner, strict=True):
        load[owner] += sum(alike.matrices[i].rows * alike.matrices[i].columns for i in stack)
    assert len(alike.matrices) == 2 + 4 + 1
    assert max(load) - min(load) <= 16 * 8
    for matrix, boxes in zip(alike.matrices, alike.boxes, strict=True):
        assert sum(map(owners.numbers, boxes)) == matrix.rows * matrix.columns


SHAPES = [(16, 8), (8, 16), (4, 8, 4), (7, 3)]


@pytest.mark.parametrize("name", ["gpt2", "odd", "mixtral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_two_processes_make_the_bits_of_one(two, name, dtype, optimizer):
    alone = learned(ALONE, name, dtype, optimizer)
    for result in two.call(learned, name=name, dtype=dtype, optimizer=optimizer):
        assert result[1] == alone[1], [key for key in alone[1] if alone[1][key] != result[1][key]]
        assert result[0] == alone[0]


def test_two_processes_learn_a_block_that_is_passed_again(two):
    alone = learned(ALONE, "looped", "float32", "AdamW")
    for result in two.call(learned, name="looped", dtype="float32", optimizer="AdamW"):
        assert result[1] == alone[1]
        assert result[0] == alone[0]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_four_processes_and_copies_of_shards(four, optimizer):
    """Every family of decoders on four shards; two copies of two, and four copies, on some."""
    for name in MODELS:
        alone = learned(ALONE, name, "float32", optimizer)
        laid = [{"data": 4}]
        laid += [{"data": 2, "replicate": 2}, {"data": 1, "replicate": 4}] * (
            name in ("odd", "mixtral")
        )
        for axes in laid:
            for result in four.call(
                learned, name=name, dtype="float32", optimizer=optimizer, axes=axes
            ):
                assert result == [alone[0], alone[1]], (name, axes)


def test_copies_of_the_whole_and_plain_collectives(two):
    """Two copies make the bits of one process; sums in any order come close to them."""
    alone = learned(ALONE, "odd", "float32", "Muon")
    axes = {"data": 1, "replicate": 2}
    for result in two.call(learned, name="odd", dtype="float32", optimizer="Muon", axes=axes):
        assert result == [alone[0], alone[1]]
    for args in ({}, {"axes": axes}):
        for result in two.call(
            learned, name="odd", dtype="float32", optimizer="Muon", exact=False, **args
        ):
            assert [step[0] for step in result[0]] == pytest.approx(
                [step[0] for step in alone[0]], rel=1e-5
            )


def drawn(mesh, name, axes):
    """True where weights drawn one by one into shards on no device are the full model's."""
    cfg = MODELS[name]
    layout = Mesh(Parallel(**axes), mesh.rank, mesh.device, mesh.store)
    expected = dict(build_model(cfg, seed=3).named_parameters())
    model = build_model(cfg, device="meta")
    shard.shard(model, layout)
    model.to_empty(device="cpu")
    shard.draw(model, layout, 3)
    repeated = []
    for path, weight in model.named_parameters():
        place = shard.place_in(model, path, layout)
        box = tuple(
            slice(low, low + size) for low, size in zip(place.start, place.size, strict=True)
        )
        repeated.append(torch.equal(weight.to_local(), expected[path][box]))
    return all(repeated) and len(repeated) == len(expected)


@pytest.mark.parametrize("axis", ["data", "tensor", "expert", "pipeline"])
def test_weights_drawn_into_shards_are_those_of_one_process(two, axis):
    names = (
        ["mixtral"]
        if axis == "expert"
        else ["gpt2", "mixtral", "alibi", *["odd"] * (axis == "data")]
    )
    for name in names:
        assert all(two.call(drawn, name=name, axes={"data": 1, axis: 2}))


def test_only_shards_gathered_for_a_text_stay(two):
    for result in two.call(stays):
        assert result == [False, True, False]


def stays(mesh):
    """True where a block is complete after a pass: usually, while a text is generated,
    afterwards."""
    model = tiny.model(MODELS["gpt2"], seed=0)
    shard.shard(model, mesh)
    weight = "decoder.blocks.0.ffn.up.weight"
    results = []

    def gone_through():
        with torch.no_grad():
            model(torch.zeros(1, 4, dtype=torch.long))
        results.append(not hasattr(model.get_parameter(weight), "to_local"))

    gone_through()
    with shard.gathered(model, mesh, 1):
        gone_through()
    gone_through()
    return results

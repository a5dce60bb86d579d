"""``train`` with matrices or experts on several processes: close to one process, in the folder that
one would leave."""

from __future__ import annotations

import json

import pytest
import torch

from glassformer.core.checkpoints.tensors import open_files
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.place import Cut, place_of
from small_runs import copy_half_run, log, trained

MIXTURE = (
    '{type = "MoE", experts = 4, top_k = 2, balance_loss = 0.01, '
    'expert = {type = "GatedMLP", hidden = 24, bias = true}, shared = {type = "MLP", hidden = 12}}'
)
EXPERTS = {"decoder.pattern.feedforward": MIXTURE}
TENSOR = {"parallel.tensor": 2}
EXPERT = {"parallel.expert": 2}
PIPELINE = {"parallel.pipeline": 2}
CONTEXT = {"parallel.context": 2}

RUNS = {
    "tensor, Muon": (TENSOR, {"decoder.dropout": 0.1}),
    "experts, Muon": (EXPERT, EXPERTS),
    "pipeline, Muon": (PIPELINE, {}),
    "context, Muon": (CONTEXT, {}),
    "tensor of experts, AdamW": (TENSOR, {**EXPERTS, "optimizer": "AdamW"}),
    "tensor, bf16": (TENSOR, {"dtype": "bfloat16"}),
    "experts, bf16": (EXPERT, {**EXPERTS, "dtype": "bfloat16", "optimizer": "AdamW"}),
    "experts, plain sums": (EXPERT, {**EXPERTS, "parallel.exact": False}),
    "pipeline of experts, AdamW": (PIPELINE, {**EXPERTS, "optimizer": "AdamW"}),
    "pipeline, bf16": (PIPELINE, {"dtype": "bfloat16"}),
    "pipeline, plain sums": (PIPELINE, {"parallel.exact": False, "optimizer": "AdamW"}),
    "context, previous tokens": (CONTEXT, {**EXPERTS, "embed.previous_token_embeddings": 2}),
    "context, bf16": (CONTEXT, {"dtype": "bfloat16"}),
}


def test_the_runs_of_a_box_are_its_numbers_in_the_order_of_the_whole():
    variants = (
        ((6, 4), "tensor", (1, 1, 3)),
        ((4, 3, 5), "tensor", (2, 0, 2)),
        ((6, 4), "expert", (0, 2, 5)),
    )
    for shape, axis, cut in variants:
        full = torch.arange(torch.Size(shape).numel()).view(shape)
        item = Cut(axis, *cut, shape[cut[0]])
        for data in range(2):
            place = place_of(tuple(item.of(full).shape), Mesh(Parallel(data=2), data), item)
            expected = item.of(full).chunk(2)[data]
            numbers = [number for low, count in place.runs() for number in range(low, low + count)]
            assert numbers == expected.flatten().tolist()
            assert place.shape == shape
            assert place.size == tuple(expected.shape)
    assert list(place_of((4, 3), Mesh(Parallel(data=2), 1)).runs()) == [(6, 6)]
    copy = Mesh(Parallel(data=1, expert=2), 1)
    full = place_of((4, 3), copy)
    assert place_of((2, 3), copy, Cut("expert", 0, 2, 4, 4)).is_written_by(copy)
    assert not full.is_written_by(copy)


def moved(folder, step, start=0):
    """Distance that each weight has moved between two checkpoints."""
    item, second = (open_files(folder / f"step-{number:06d}") for number in (step, start))
    return {name: item.load(name) - second.load(name) for name in item.entries}


def first_step_is_near(folder, close):
    """Of the first step: an optimizer makes more of what rounding leaves."""
    for fact in ("loss", "grad_norm"):
        expected = pytest.approx(log(folder / "one")[0][fact], rel=close)
        assert log(folder / "all")[0][fact] == expected


def near(processes, folder, name, *more_axes):
    """A run on one process and on all of them, each going on from a checkpoint of the other."""
    axis, more = RUNS[name]
    axis, more = {**axis, **dict(more_axes)}, {"schedule": "Constant", **more}
    close = 1e-2 if "bf16" in name else 1e-5
    fields = {"folder": str(folder), "more": more}
    alone = trained(None, out=str(folder / "one"), **fields)
    shared = {**fields, "more": {**more, **axis}}
    reply = processes.call(trained, out=str(folder / "all"), **shared)
    assert all(end == reply[0] for end in reply) and alone[0] == 4 == reply[0][0], reply
    assert reply[0][1:] == pytest.approx(alone[1:], rel=max(close, 2e-3))
    first_step_is_near(folder, close)
    single, every = (folder / name / "step-000002" for name in ("one", "all"))
    assert {path.name for path in single.iterdir()} == {path.name for path in every.iterdir()}
    for name in ("model.safetensors", "state.safetensors"):  # the same tensors at the same bytes
        size = int.from_bytes((single / name).read_bytes()[:8], "little") + 8
        assert (single / name).read_bytes()[:size] == (every / name).read_bytes()[:size]
        assert (single / name).stat().st_size == (every / name).stat().st_size
    expected, result = (moved(folder / name, 2, 1) for name in ("one", "all"))
    # what the optimizer made of the same gradients, all numbers of a weight together
    for name, far in expected.items():
        distance = float((result[name] - far).norm() / far.norm().clamp(min=1e-6))
        assert distance < (0.05 if close == 1e-5 else 0.3), name
    for start, end in (("one", "all"), ("all", "one")):
        out = copy_half_run(folder / f"{start} then {end}", folder / start)
        if end == "all":
            answer, _ = processes.call(trained, out=str(out), resume=True, **shared)[:2]
        else:
            answer = trained(None, out=str(out), resume=True, **fields)
        assert answer[0] == 4, answer
        for step in (2, 3):  # the weights as they were saved, then as the saved moments moved them
            for fact in ("loss", "grad_norm"):
                before = pytest.approx(
                    log(folder / start)[step][fact], rel=close * 10 ** (step - 1)
                )
                assert log(out)[step][fact] == before, step


QUICK = ("tensor, Muon", "experts, Muon", "pipeline, Muon", "context, Muon")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_run_on_two_processes(two, tmp_path, name):
    near(two, tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK[:3])
def test_an_adapter_on_two_processes(two, tmp_path, name):
    """On a base that stays; its first step, and the files with their tensors."""
    axis, more = RUNS[name]
    trained(None, str(tmp_path), str(tmp_path / "base"), more)
    drop = 0.0 if axis is PIPELINE else 0.1  # each stage draws for itself
    more = {
        "from": str(tmp_path / "base"),
        "train.tune": f'{{type = "LoRA", rank = 2, dropout = {drop}}}',
        **dict.fromkeys(("recipe", "decoder.depth", "data.tokenizer", *more)),
    }
    fields = {"folder": str(tmp_path), "out": str(tmp_path / "all"), "more": {**more, **axis}}
    alone = trained(None, str(tmp_path), str(tmp_path / "one"), more)
    for end in two.call(trained, **fields):
        assert end == pytest.approx(alone, rel=2e-3)
    first_step_is_near(tmp_path, 1e-5)
    single, every = (
        {path.name: path.stat().st_size for path in step.glob("*.safetensors")}
        for step in (tmp_path / "one" / "step-000004", tmp_path / "all" / "step-000004")
    )
    assert single == every


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK[:3])
def test_samples_while_it_trains(two, tmp_path, name):
    axis, more = RUNS[name]
    out, more = tmp_path / "out", {**EXPERTS, **more, **axis, "sample_every": 2}
    first, _ = two.call(trained, folder=str(tmp_path), out=str(out), more=more, speaks=True)
    assert first[0] == 4, first
    texts = [json.loads(line)["text"] for line in (out / "samples.jsonl").open()]
    assert len(texts) == 2 and all(len(text) > 20 for text in texts), texts  # a context is 26


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if "pipeline" not in name])
@pytest.mark.parametrize("beside", ["data", "replicate"])
def test_a_run_on_two_by_two(four, tmp_path, name, beside):
    near(four, tmp_path, name, (f"parallel.{beside}", 2))


def test_what_does_not_fit_is_refused_before_anything_is_written(two, tmp_path):
    three = MIXTURE.replace("experts = 4", "experts = 3")
    wrong = {
        "heads over 1 of keys and values cannot be cut in": {
            **TENSOR,
            "decoder.pattern.attention.kv_heads": 1,
        },
        "parallel.expert is 2 and the model has no mixture of experts": EXPERT,
        "3 experts cannot be shared out to parallel.expert 2": {
            **EXPERT,
            "decoder.pattern.feedforward": three,
        },
        "parallel.pipeline 2 is more stages than the 1 block of": {**PIPELINE, "decoder.depth": 1},
        "recurrent": {**CONTEXT, "decoder": '{type = "Recurrent", depth = 1}'},
    }
    for sentence, more in wrong.items():
        for answer in two.call(trained, folder=str(tmp_path), out=str(tmp_path / "x"), more=more):
            assert sentence in answer, answer
    assert not list((tmp_path / "x").glob("*"))

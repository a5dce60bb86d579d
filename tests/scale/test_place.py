"""``train`` with matrices or experts on several processes: close to one process, in the folder that
one would leave."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from glassformer import runs
from glassformer.commands.train import write_sample
from glassformer.core.checkpoints.tensors import open_files
from glassformer.core.errors import UserError
from glassformer.runs import run_file
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.place import Cut, place_of

LINES = [
    f"the {word} {verb} the {letter}"
    for word in ("cat", "owl")
    for verb in ("saw", "met")
    for letter in "abcdefg"
]
RUN = {
    "recipe": "glass/200k",
    "decoder.depth": 2,
    "context": 26,
    "data.tokenizer": "char",
    "data.valid": 0.2,
}
RUN |= {
    "steps": 4,
    "batch": 8,
    "accumulate": 4,
    "evaluate_every": 2,
    "save_every": 1,
    "keep": 9,
    "sample_every": 3,
}
RUN |= {"tensorboard": False, "dtype": "float32", "evaluate_batches": 3, "schedule": "Constant"}
MIXTURE = (
    '{type = "MoE", experts = 4, top_k = 2, balance_loss = 0.01, '
    'expert = {type = "GatedMLP", hidden = 24, bias = true}, shared = {type = "MLP", hidden = 12}}'
)
EXPERTS = {"decoder.pattern.feedforward": MIXTURE}
TENSOR, EXPERT = {"parallel.tensor": 2}, {"parallel.expert": 2}
PIPELINE = {"parallel.pipeline": 2}
STAGES = {
    "Muon": {},
    "of experts, AdamW": {**EXPERTS, "optimizer": "AdamW"},
    "bf16": {"dtype": "bfloat16"},
    "plain sums": {"parallel.exact": False, "optimizer": "AdamW"},
}
RUNS = {
    "tensor, Muon": (TENSOR, {"decoder.dropout": 0.1}),
    "tensor of experts, AdamW": (TENSOR, {**EXPERTS, "optimizer": "AdamW"}),
    "tensor, bf16": (TENSOR, {"dtype": "bfloat16"}),
    "experts, Muon": (EXPERT, EXPERTS),
    "experts, bf16": (EXPERT, {**EXPERTS, "dtype": "bfloat16", "optimizer": "AdamW"}),
    "experts, plain sums": (EXPERT, {**EXPERTS, "parallel.exact": False}),
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
            assert (
                numbers == expected.flatten().tolist()
                and place.shape == shape
                and place.size == tuple(expected.shape)
            )
    assert list(place_of((4, 3), Mesh(Parallel(data=2), 1)).runs()) == [(6, 6)]
    copy = Mesh(Parallel(data=1, expert=2), 1)
    full, individual = place_of((4, 3), copy), place_of((2, 3), copy, Cut("expert", 0, 2, 4, 4))
    assert individual.is_written_by(copy) and not full.is_written_by(copy)


def trained(mesh, folder, out, more, resume=False, speaks=False):
    """End of a run, or its error. Where it ``speaks``, its samples are the model's own."""
    text = Path(folder) / "text.txt"
    if not text.exists():
        text.write_text("\n".join(LINES * 3))
    message = {
        name: value
        for name, value in {**RUN, "data.train": str(text), **more}.items()
        if value is not None
    }
    try:
        ended = runs.run(
            run_file.read_run(None, message),
            Path(out),
            resume,
            sample=write_sample if speaks else lambda *_: "text",
        )
    except UserError as error:
        return str(error)
    return [ended.step, ended.loss, ended.valid_loss]


def log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").open()]


def moved(folder, step, start=0):
    """Distance that each weight has moved between two checkpoints."""
    item, second = (open_files(folder / f"step-{number:06d}") for number in (step, start))
    return {name: item.load(name) - second.load(name) for name in item.entries}


def near(processes, folder, axis, more, close):
    """A run on one process and on all of them, each going on from a checkpoint of the other."""
    alone = trained(None, str(folder), str(folder / "one"), more)
    reply = processes.call(
        trained, folder=str(folder), out=str(folder / "all"), more={**more, **axis}
    )
    assert all(item == reply[0] for item in reply) and alone[0] == 4 == reply[0][0], reply
    assert reply[0][1:] == pytest.approx(alone[1:], rel=max(close, 2e-3))
    # of the first step: an optimizer makes more of what rounding leaves
    for fact in ("loss", "grad_norm"):
        assert log(folder / "all")[0][fact] == pytest.approx(
            log(folder / "one")[0][fact], rel=close
        )
    item, every = (folder / name / "step-000002" for name in ("one", "all"))
    assert sorted(path.name for path in item.iterdir()) == sorted(
        path.name for path in every.iterdir()
    )
    for name in ("model.safetensors", "state.safetensors"):  # the same tensors at the same bytes
        size = int.from_bytes((item / name).read_bytes()[:8], "little") + 8
        assert (item / name).read_bytes()[:size] == (every / name).read_bytes()[:size]
        assert (item / name).stat().st_size == (every / name).stat().st_size
    expected, result = (moved(folder / name, 2, 1) for name in ("one", "all"))
    # what the optimizer made of the same gradients, all numbers of a weight together
    for name, far in expected.items():
        assert float((result[name] - far).norm() / far.norm().clamp(min=1e-6)) < (
            0.05 if close == 1e-5 else 0.3
        ), name
    for started, on, variant in (("one", "all", axis), ("all", "one", {})):
        out = folder / f"{started} then {on}"
        out.mkdir()
        shutil.copytree(folder / started / "step-000002", out / "step-000002")
        shutil.copy(folder / started / "run.json", out)
        shutil.copy(folder / started / "log.jsonl", out)
        fields = {
            "folder": str(folder),
            "out": str(out),
            "more": {**more, **variant},
            "resume": True,
        }
        answer = processes.call(trained, **fields)[0] if on == "all" else trained(None, **fields)
        assert answer[0] == 4, answer
        for step in (2, 3):  # the weights as they were saved, then as the saved moments moved them
            for fact in ("loss", "grad_norm"):
                tolerance = close * 10 ** (step - 1)
                assert log(out)[step][fact] == pytest.approx(
                    log(folder / started)[step][fact], rel=tolerance
                ), step


@pytest.mark.parametrize("name", ["tensor, Muon", "experts, Muon"])
def test_a_run_on_two_processes(two, tmp_path, name):
    near(two, tmp_path, *RUNS[name], 1e-5)


def test_a_run_in_two_stages(two, tmp_path):
    near(two, tmp_path, PIPELINE, STAGES["Muon"], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STAGES)[1:])
def test_other_runs_in_two_stages(two, tmp_path, name):
    near(two, tmp_path, PIPELINE, STAGES[name], 1e-2 if name == "bf16" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor, Muon", "experts, Muon", "pipeline"])
def test_an_adapter_on_two_processes(two, tmp_path, name):
    """On a base that stays; its first step, and the files with their tensors."""
    axis, more = (PIPELINE, {}) if name == "pipeline" else RUNS[name]
    trained(None, str(tmp_path), str(tmp_path / "base"), more)
    counts_by_name = dict.fromkeys(("recipe", "decoder.depth", "data.tokenizer", *more))
    drop = 0.0 if name == "pipeline" else 0.1  # each stage draws for itself
    fields = {
        "from": str(tmp_path / "base"),
        "train.tune": f'{{type = "LoRA", rank = 2, dropout = {drop}}}',
        **counts_by_name,
    }
    alone = trained(None, str(tmp_path), str(tmp_path / "one"), fields)
    for pair in two.call(
        trained, folder=str(tmp_path), out=str(tmp_path / "all"), more={**fields, **axis}
    ):
        assert pair == pytest.approx(alone, rel=2e-3), pair
    for fact in ("loss", "grad_norm"):
        assert log(tmp_path / "all")[0][fact] == pytest.approx(
            log(tmp_path / "one")[0][fact], rel=1e-5
        )
    item, every = (sorted((tmp_path / name / "step-000004").iterdir()) for name in ("one", "all"))
    assert [(path.name, path.stat().st_size) for path in item if path.suffix == ".safetensors"] == [
        (path.name, path.stat().st_size) for path in every if path.suffix == ".safetensors"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor, Muon", "experts, Muon", "pipeline"])
def test_samples_while_it_trains(two, tmp_path, name):
    axis, more = (PIPELINE, EXPERTS) if name == "pipeline" else RUNS[name]
    out, fields = tmp_path / "out", {**more, **axis, "sample_every": 2}
    first, _ = two.call(trained, folder=str(tmp_path), out=str(out), more=fields, speaks=True)
    assert first[0] == 4, first
    texts = [json.loads(line)["text"] for line in (out / "samples.jsonl").open()]
    assert len(texts) == 2 and all(len(text) > 20 for text in texts), texts  # a context is 26


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNS)[1:3] + list(RUNS)[4:])
def test_other_runs_on_two_processes(two, tmp_path, name):
    near(two, tmp_path, *RUNS[name], 1e-2 if "bf16" in name else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_on_two_by_two(four, tmp_path, name):
    """Data beside the axis, then copies beside it."""
    axis, more = RUNS[name]
    for variant in ({"parallel.data": 2}, {"parallel.replicate": 2}):
        (folder := tmp_path / next(iter(variant))).mkdir()
        near(four, folder, {**axis, **variant}, more, 1e-2 if "bf16" in name else 1e-5)


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
    }
    for sentence, more in wrong.items():
        for answer in two.call(trained, folder=str(tmp_path), out=str(tmp_path / "x"), more=more):
            assert sentence in answer, answer
    assert not list((tmp_path / "x").glob("*"))

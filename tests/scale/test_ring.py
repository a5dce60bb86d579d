"""Ring attention on several processes equals one process: logits and gradients of every family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny
from axes import FAMILIES, LENGTHS, result, row, worst
from glassformer import runs
from glassformer.core.errors import UserError
from glassformer.core.nn import Tape, build_model
from glassformer.runs import run_file
from glassformer.scale import ring as rings
from glassformer.scale.collectives import summed
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from tiny import ALL, DECODERS, tokens


def compare(mesh, names, scene, length, double):
    """The largest difference of logits, and of gradients beside their size, for each family."""
    ring, actual_result = rings.Ring(mesh.group("context")), {}
    torch.manual_seed(0)
    for name in names:
        cfg = FAMILIES[name]
        item, shared = (
            build_model(cfg, seed=1, dtype=torch.float64 if double else None).eval()
            for _ in range(2)
        )
        ring.attach(shared, training=False)
        args, saved = row(cfg, scene, length)
        weigh = torch.randn(
            2, length, tiny.VOCAB, generator=torch.Generator().manual_seed(3), dtype=torch.float64
        )
        weigh = (weigh / length).to(next(item.parameters()).dtype)
        expected, grads = result(item, args, saved, weigh, args.numel())
        second_local = {k: ring.cut(v, rings.FILL.get(k, -1)) for k, v in saved.items()}
        local = ring.cut(args, 0)
        logits, individual = result(
            shared, local, second_local, ring.cut(weigh, 0), int((ring.cut(args) >= 0).sum())
        )
        full = ring.join(logits)[:, :length]
        far = (full - expected).abs().max() / expected.abs().max()
        actual_result[name] = [
            float(far),
            worst({path: summed(individual[path], ring.group) for path in grads}, grads),
        ]
    return actual_result


def run(mesh, **kwargs):
    """``compare`` with all processes on the context axis."""
    return compare(Mesh(Parallel(data=1, context=mesh.size), mesh.rank), **kwargs)


def near(processes, scene, length, double, names=tuple(FAMILIES)):
    bound = 1e-12 if double else 1e-5
    for answer in processes.call(run, names=names, scene=scene, length=length, double=double):
        assert len(answer) == len(names)
        assert not {name: far for name, far in answer.items() if not max(far) < bound}


@pytest.mark.parametrize("scene", ["packed", "padded"])
def test_every_family_in_fp64(two, scene):
    near(two, scene, LENGTHS[0], double=True)


def test_every_kind_of_mask_and_bias_in_fp32_over_several_blocks(two):
    near(
        two,
        "prefix",
        LENGTHS[1],
        False,
        ["mixed", "gemma2", "t5", "alibi", "onward", "glass", "mixtral"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scene", ["plain", "packed", "padded", "prefix"])
def test_every_family_on_four_processes(four, scene, length, double):
    near(four, scene, length, double)


def test_columns_are_shared_out_once_and_put_together_again():
    for size in (1, 2, 3, 4):
        shards = []
        for rank in range(size):
            ring = rings.Ring.__new__(rings.Ring)
            ring.rank, ring.size = rank, size
            shards.append(ring.columns(24))
        assert sorted(torch.cat(shards).tolist()) == list(range(24))
        causal = [int((shard + 1).sum()) for shard in shards]
        assert max(causal) == min(causal), "all have as many pairs to compute"


@pytest.mark.parametrize(
    ("cfg", "word"),
    [
        (DECODERS["gru"], "recurrent"),
        (ALL["bahdanau"], "recurrent"),
        (ALL["bert"], "pool"),
        (DECODERS["noisy"], "capacity"),
    ],
)
def test_what_reads_a_whole_row_is_refused(cfg, word):
    with pytest.raises(UserError, match=word):
        rings.check(cfg)


def patterns(mesh):
    """Tape's values of attention patterns that no process has completely."""
    model = tiny.model(DECODERS["llama"])
    ring = rings.Ring(Mesh(Parallel(data=1, context=mesh.size), mesh.rank).group("context"))
    ring.attach(model)
    try:
        model(tokens(1, 8), pos=torch.arange(8)[None], tape=Tape("*.pattern"))
    except UserError as error:
        return str(error)


def test_patterns_are_not_shown_of_a_shard(two):
    assert all("one process" in answer for answer in two.call(patterns))


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
    "accumulate": 2,
    "evaluate_every": 2,
    "save_every": 2,
    "sample_every": 3,
}
RUN |= {"tensorboard": False, "dtype": "float32", "evaluate_batches": 3}
MIXTURE = (
    '{type = "MoE", experts = 4, top_k = 2, balance_loss = 0.01, expert = {type = "MLP", '
    "hidden = 24}}"
)
RUNS = {
    "plain": {},
    "experts, previous tokens": {
        "decoder.pattern.feedforward": MIXTURE,
        "embed.previous_token_embeddings": 2,
    },
    "bf16": {"dtype": "bfloat16"},
}


def trained(mesh, folder, out, more, resume=False):
    """End of a run whose rows lie on all processes of ``mesh``, or on one; or its error."""
    text = Path(folder) / "text.txt"
    message = {**RUN, "data.train": str(text), **more}
    if mesh is not None:
        message["parallel.context"] = 2
    try:
        ended = runs.run(
            run_file.read_run(None, message), Path(out), resume, sample=lambda model, *_: "text"
        )
    except UserError as error:
        return str(error)
    return [ended.step, ended.loss, ended.valid_loss]


@pytest.mark.parametrize(
    "name", ["plain", pytest.param("experts, previous tokens", marks=pytest.mark.slow), "bf16"]
)
def test_a_run_whose_rows_lie_on_two_processes(two, tmp_path, name):
    (tmp_path / "text.txt").write_text("\n".join(LINES * 3))
    alone = trained(None, str(tmp_path), str(tmp_path / "one"), RUNS[name])
    reply = two.call(trained, folder=str(tmp_path), out=str(tmp_path / "two"), more=RUNS[name])
    assert reply[0] == reply[1] and alone[0] == 4
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").open()]
        for name in ("one", "two")
    ]
    close = 1e-2 if name == "bf16" else 1e-5
    # of the first step: an optimizer makes more of what rounding leaves
    for fact in ("loss", "grad_norm"):
        assert logs[1][0][fact] == pytest.approx(logs[0][0][fact], rel=close)
    assert reply[0][1:] == pytest.approx(alone[1:], rel=max(close, 1e-3))
    more = {"steps": 6, **RUNS[name]}  # and on with one process
    on = trained(None, str(tmp_path), str(tmp_path / "two"), more, True)
    assert on[0] == 6 and on[1] < alone[1] + 0.5


@pytest.mark.slow
def test_a_run_on_two_by_two(four, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(LINES * 3))
    alone = trained(None, str(tmp_path), str(tmp_path / "one"), {})
    for answer in four.call(trained, folder=str(tmp_path), out=str(tmp_path / "four"), more={}):
        assert answer == pytest.approx(alone, rel=1e-3)
    item, four = (
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])
        for name in ("one", "four")
    )
    assert all(four[fact] == pytest.approx(item[fact], rel=1e-5) for fact in ("loss", "grad_norm"))


def test_what_does_not_go_round_is_refused_before_it_starts(two, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(LINES * 3))
    gru = {"decoder": '{type = "Recurrent", depth = 1}'}
    for answer in two.call(trained, folder=str(tmp_path), out=str(tmp_path / "x"), more=gru):
        assert "recurrent" in answer


def test_keys_come_from_the_process_before():
    ring = object.__new__(rings.Ring)
    ring.rank, ring.size = 1, 4
    assert [ring.shard_owner(step) for step in range(4)] == [1, 0, 3, 2]

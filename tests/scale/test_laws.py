"""A run's folder is the same, byte for byte, whatever the number of processes that trained it."""

from __future__ import annotations

import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import pytest

from folders import write_rows
from glassformer.core import files
from glassformer.formats.data import corpus, tokenising
from glassformer.runs import launch
from glassformer.runs.processes import check, in_micro_batches
from glassformer.runs.run_checkpoints import read_json
from glassformer.runs.signals import lock
from glassformer.scale import shares
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.prefetch import Prefetched
from glassformer.scale.shared_batches import shared_out
from glassformer.tasks.rewards import reward
from many import Processes
from mistakes import mistake
from small_runs import LINES, copy_half_run, settings, trained
from tiny import DECODERS

KINDS = {
    "dropout": {"decoder.dropout": 0.1},
    "bf16": {"dtype": "bfloat16", "optimizer": "AdamW", "clip": 0.01},
    "experts": {
        "decoder.pattern.feedforward": '{type = "MoE", experts = 4, top_k = 2, balance_loss = '
        "0.01, noise = true, "
        'expert = {type = "GatedMLP", hidden = 24}}'
    },
    "schedule": {"schedule": "Cosine", "label_smoothing": 0.1, "accumulate": 2},
}


LORA = {
    "train.tune": '{type = "LoRA", rank = 2, dropout = 0.1}',
    **dict.fromkeys(("recipe", "decoder.depth", "data.tokenizer")),
}
EXAMPLES = {
    "recipe": "glass/encoder-1m",
    "encoder.depth": 1,
    "dim": 32,
    "encoder.dropout": 0.1,
    "data.type": "Examples",
    **dict.fromkeys(("decoder.depth", "evaluate_batches")),
}
CLASSIFY = '{type = "Classify", rdrop = 1.0, adversarial = 0.5}'


@reward
def vowels(answer, record):
    return sum(letter in "aeiou" for letter in answer) / (1 + len(answer))


PAIR = ("prompt", "chosen", "rejected")
TEACHER = 'teacher = "FOLDER/base"'
CONVERSATIONS = {
    "chat": (("prompt", "completion"), "Chat"),
    "preference": (PAIR, "Preference"),
    "reward": (PAIR, "Reward"),
    "distill": (("prompt", "completion"), f'{{type = "Distill", {TEACHER}, alpha = 0.9}}'),
    "saved logits": (
        ("prompt", "completion"),
        f'{{type = "Distill", {TEACHER}, logits = "FOLDER/logits.npz", top = 8}}',
    ),
    "rewarded": (
        ("prompt", "answer"),
        '{type = "Rewarded", reward = "vowels", group = 4, max_new = 6, beta = 0.1}',
    ),
}
"""Fields of a record, and the objective; all but the first kind begin from a model of it."""
SLOW = ("chat", "reward", "saved logits", "rewarded")


def more_of(folder, kind):
    """What a kind of run has beside the small run's settings."""
    more = {"batch": 9, "save_every": 2, "sample_every": 2, **KINDS.get(kind, {})}
    if kind == "lora":
        more |= {"from": f"{folder}/base", **LORA}
    if kind in ("examples", "contrast"):
        field, word = ("label", 1) if kind == "examples" else ("second", -1)
        table = Path(folder) / f"{kind}.tsv"
        rows = [f"{line}\t{line.split()[word]}" for line in LINES]
        table.write_text("\n".join([f"text\t{field}", *rows]) + "\n")
        objective = CLASSIFY if kind == "examples" else "Contrast"
        more |= {**EXAMPLES, "data.train": str(table), "objective": objective}
    if kind in CONVERSATIONS:
        fields, objective = CONVERSATIONS[kind]
        file = Path(folder) / f"{kind}.jsonl"
        texts = [(line, line.split()[-1], "zebra") for line in LINES]
        records = [dict(zip(fields, row, strict=False)) for row in texts]
        write_rows(file, records)
        more |= {"data.type": "Examples", "data.train": str(file), "evaluate_batches": None}
        more |= {"objective": objective.replace("FOLDER", str(folder)), "context": 96}
        more |= {"data.tokenizer": "byte"}
    if kind in CONVERSATIONS and kind != "chat":
        more |= {"from": f"{folder}/base"}
        more |= dict.fromkeys(("recipe", "decoder.depth", "data.tokenizer"))
    return more


def ran(mesh, folder, out, kind, resume=False, more=None):
    return trained(mesh, folder, out, {**more_of(folder, kind), **(more or {})}, resume)


def sums(out):
    return {path.name: files.sha256(path / "SHA256SUMS") for path in sorted(out.glob("step-*"))}


@pytest.mark.parametrize(
    "kind",
    [
        *KINDS,
        "lora",
        "examples",
        "contrast",
        "preference",
        "distill",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW),
    ],
)
def test_two_processes_leave_the_folder_of_one(two, tmp_path, kind):
    """Also of LoRA on a base that stays, of a classifier that reads each text twice and once more
    pushed, of pairs of texts, which compare a whole batch, and of answers held to a reference."""
    if kind == "lora":
        ran(None, str(tmp_path), str(tmp_path / "base"), "schedule")
    if kind in CONVERSATIONS and kind != "chat":
        ran(None, str(tmp_path), str(tmp_path / "base"), "chat")
    alone = ran(None, str(tmp_path), str(tmp_path / "alone"), kind)
    first, second = two.call(ran, folder=str(tmp_path), out=str(tmp_path / "both"), kind=kind)
    assert first == second == alone
    assert sums(tmp_path / "both") == sums(tmp_path / "alone")
    assert len(sums(tmp_path / "both")) == 2


def test_a_run_goes_on_with_another_number_of_processes(two, tmp_path):
    full = tmp_path / "whole"
    ran(None, str(tmp_path), str(full), "dropout")
    for name in ("one then two", "two then one"):
        out = copy_half_run(tmp_path / name, full)
        fields = {"folder": str(tmp_path), "out": str(out), "kind": "dropout", "resume": True}
        two.call(ran, **fields) if name.endswith("two") else ran(None, **fields)
        assert sums(out) == sums(full)
    mesh = Mesh(Parallel(data=3))
    train = settings(tmp_path, more_of(str(tmp_path), "dropout")).train
    with mistake("3 processes cannot share"):
        in_micro_batches(train, read_json(full / "run.json"), mesh, full)


def ran_ahead(mesh, folder, out, kind, resume=False):
    """``ran`` with its batches read ahead in a thread as for a GPU."""
    with unittest.mock.patch.object(
        launch, "read_ahead", lambda batches, device: Prefetched(batches)
    ):
        return ran(mesh, folder, out, kind, resume)


@pytest.mark.parametrize("kind", ["dropout", "examples"])
def test_processes_that_read_ahead_leave_the_same_folder_and_go_on_in_the_middle(
    two, tmp_path, kind
):
    alone = tmp_path / "alone"
    pair = tmp_path / "both"
    fields = {"folder": str(tmp_path), "kind": kind}
    expected = ran(None, out=str(alone), **fields)
    assert two.call(ran_ahead, out=str(pair), **fields) == [expected] * 2
    resumed = copy_half_run(tmp_path / "resumed", pair)
    two.call(ran_ahead, out=str(resumed), resume=True, **fields)
    assert sums(resumed) == sums(pair) == sums(alone) != {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dropout", "experts"])
def test_eight_processes_leave_the_folder_of_one(tmp_path, kind):
    fields = {"folder": str(tmp_path), "kind": kind, "more": {"accumulate": 8}}
    alone = ran(None, out=str(tmp_path / "1"), **fields)
    pool = Processes(8)
    assert pool.call(ran, out=str(tmp_path / "8"), **fields) == [alone] * 8
    assert sums(tmp_path / "8") == sums(tmp_path / "1") != {}
    pool.close()


def test_batches_of_a_validation_are_shared_out_and_all_take_part_in_the_last_round():
    """Each counts once, with one process; all processes compute as often."""
    result = [list(shared_out(range(5), Mesh(Parallel(data=3), rank))) for rank in range(3)]
    assert [[number for number, totals in item if totals] for item in result] == [
        [0, 3],
        [1, 4],
        [2],
    ]
    assert {len(item) for item in result} == {2}
    assert not list(shared_out([], Mesh(Parallel(data=3))))


def refused(mesh, folder, out):
    """Messages for a folder that another training holds, for a mistake of the second process alone,
    for settings that do not fit."""
    fields = {"mesh": mesh, "folder": folder, "kind": "dropout"}
    with lock(Path(out), "training") if mesh.is_first else files.temporary(Path(folder), "x"):
        mesh.gather_json(0)
        results = [ran(out=out, **fields)]
    add = shares._add

    def full(*args):
        if mesh.rank == 1:
            raise OSError(28, "No space left on device")
        add(*args)

    with unittest.mock.patch.object(shares, "_add", full):
        results.append(ran(out=out, **fields))
    for more in ({"batch": 1, "accumulate": 1}, {"parallel.data": "3"}):
        results.append(ran(out=f"{out}-2", more=more, **fields))
    return results


def test_a_mistake_of_one_is_everybodys_and_leaves_nothing_half_written(two, tmp_path):
    first, second = two.call(refused, folder=str(tmp_path), out=str(tmp_path / "out"))
    assert first == second
    stored, full, rows, count = first
    assert stored.startswith("Another process is training in")
    assert full.startswith("The disk that holds")
    assert "too few for 2 micro-batches" in rows
    assert "data 3 is for 3, but there are 2 processes" in count
    remaining = [path.name for path in (tmp_path / "out").iterdir()]
    assert not [name for name in remaining if "step" in name or name.endswith(".part")]


def looked_through(mesh, folder, out):
    """Number of times that this process reads all of a corpus, or of its tokens, to check them."""
    results = []
    sha256 = files.sha256
    for module in (tokenising, corpus):
        module.files = SimpleNamespace(
            **{**vars(files), "sha256": lambda path: results.append(path) or sha256(path)}
        )
    try:
        ran(mesh, folder, out, "dropout")
    finally:
        tokenising.files = corpus.files = files
    return len(results)


def test_one_process_of_a_machine_looks_through_the_corpus(two, tmp_path):
    ran(None, str(tmp_path), str(tmp_path / "alone"), "dropout")  # it is tokenised
    first, second = two.call(looked_through, folder=str(tmp_path), out=str(tmp_path / "both"))
    assert first >= 4
    assert second == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rewarded", "distill"])
@pytest.mark.parametrize("more", [{"train.tune": LORA["train.tune"]}, KINDS["bf16"]])
def test_two_processes_tune_and_round_answers_as_one_does(two, tmp_path, kind, more):
    """Low-rank changes of shards, and bfloat16."""
    ran(None, str(tmp_path), str(tmp_path / "base"), "chat")
    fields = {"folder": str(tmp_path), "kind": kind, "more": more}
    alone = ran(None, out=str(tmp_path / "alone"), **fields)
    assert two.call(ran, out=str(tmp_path / "both"), **fields) == [alone] * 2
    assert sums(tmp_path / "both") == sums(tmp_path / "alone") != {}


@pytest.mark.parametrize(
    ("kind", "axis"),
    [
        ("distill", "context"),
        ("preference", "tensor"),
        ("preference", "context"),
        ("rewarded", "expert"),
    ],
)
def test_an_objective_that_needs_the_whole_says_so(kind, axis, tmp_path):
    train = settings(tmp_path, more_of(str(tmp_path), kind)).train
    with mistake("needs whole rows and the whole model", f"leave parallel.{axis} at 1"):
        check(train, DECODERS["llama"], Mesh(Parallel(**{axis: 2})))

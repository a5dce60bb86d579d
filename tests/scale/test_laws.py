"""A run's folder is the same, byte for byte, whatever the number of processes that trained it."""

from __future__ import annotations

import shutil
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import pytest

from glassformer import runs
from glassformer.core import files
from glassformer.core.errors import UserError
from glassformer.formats.data import corpus, tokenising
from glassformer.runs import launch, run_file
from glassformer.scale import shares
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.prefetch import Prefetched
from glassformer.scale.shared import shared_out
from many import Processes

LINES = [
    f"the {word} {verb} the {letter}"
    for word in ("cat", "dog", "owl")
    for verb in ("saw", "met")
    for letter in "abcdefg"
]
SMALL = {"recipe": "glass/200k", "decoder.depth": 2, "context": 24, "data.tokenizer": "char"}
SMALL |= {
    "steps": 4,
    "batch": 9,
    "accumulate": 4,
    "evaluate_every": 2,
    "save_every": 2,
    "keep": 9,
    "sample_every": 2,
}
SMALL |= {"tensorboard": False, "dtype": "float32", "data.valid": 0.2, "evaluate_batches": 3}
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


EXAMPLES = {
    "recipe": "glass/encoder-1m", "encoder.depth": 1, "dim": 32, "encoder.dropout": 0.1, "data.type": "Examples",
    "objective": '{type = "Classify", rdrop = 1.0, adversarial = 0.5}', "data.tokenizer": "char",
}  # fmt: skip


def settings(folder: Path, kind: str, more: dict | None = None):
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("\n".join(LINES * 3))
    message = {**SMALL, "data.train": str(text), **KINDS.get(kind, {}), **(more or {})}
    if kind == "examples":
        table = folder / "table.tsv"
        rows = [f"{line}\t{line.split()[1]}" for line in LINES]
        if not table.exists():
            table.write_text("\n".join(["text\tlabel", *rows]) + "\n")
        left_out = ("decoder.depth", "evaluate_batches")
        message = {
            name: value for name, value in {**message, **EXAMPLES}.items() if name not in left_out
        }
        message["data.train"] = str(table)
    if kind == "contrast":
        table = folder / "pairs.tsv"
        if not table.exists():
            pairs = [f"{line}\t{line.split()[-1]}" for line in LINES]
            table.write_text("\n".join(["text\tsecond", *pairs]) + "\n")
        message = {
            n: value
            for n, value in {**message, **EXAMPLES}.items()
            if n not in ("decoder.depth", "evaluate_batches")
        }
        message |= {"data.train": str(table), "objective": "Contrast"}
    if kind == "lora":
        message = {
            name: value
            for name, value in message.items()
            if name not in ("recipe", "decoder.depth", "data.tokenizer")
        }
        message |= {
            "from": str(folder / "base"),
            "train.tune": '{type = "LoRA", rank = 2, dropout = 0.1}',
        }
    return run_file.read_run(None, message)


def ran(
    mesh: Mesh | None,
    folder: str,
    out: str,
    kind: str,
    resume: bool = False,
    more: dict | None = None,
):
    """Run it on all processes of the mesh's group; how it ended, or the mistake."""
    try:
        ended = runs.run(
            settings(Path(folder), kind, more), Path(out), resume, sample=lambda model, *_: "text"
        )
    except UserError as error:
        return str(error)
    return [ended.step, ended.loss, ended.valid_loss]


def sums(out: Path) -> dict[str, str]:
    return {path.name: files.sha256(path / "SHA256SUMS") for path in sorted(out.glob("step-*"))}


@pytest.mark.parametrize("kind", list(KINDS))
def test_two_processes_leave_the_folder_of_one(two, tmp_path, kind):
    alone = ran(None, str(tmp_path), str(tmp_path / "alone"), kind)
    item, second = two.call(ran, folder=str(tmp_path), out=str(tmp_path / "both"), kind=kind)
    assert item == second == alone
    assert sums(tmp_path / "both") == sums(tmp_path / "alone") and len(sums(tmp_path / "both")) == 2


def test_an_adapter_a_classifier_and_what_compares_a_whole_batch_too(two, tmp_path):
    """LoRA on a base that stays, a classifier that reads each text twice and once more pushed,
    pairs of texts."""
    ran(None, str(tmp_path), str(tmp_path / "base"), "schedule")
    for kind in ("lora", "examples", "contrast"):
        alone = ran(None, str(tmp_path), str(tmp_path / f"{kind}-1"), kind)
        item, second = two.call(
            ran, folder=str(tmp_path), out=str(tmp_path / f"{kind}-2"), kind=kind
        )
        assert item == second == alone, kind
        assert sums(tmp_path / f"{kind}-2") == sums(tmp_path / f"{kind}-1") != {}, kind


def test_a_run_goes_on_with_another_number_of_processes(two, tmp_path):
    kind, full = "dropout", tmp_path / "whole"
    ran(None, str(tmp_path), str(full), kind)
    for begins, out in (("one", tmp_path / "1-2"), ("two", tmp_path / "2-1")):
        out.mkdir()
        shutil.copytree(full / "step-000002", out / "step-000002")
        shutil.copy(full / "run.json", out)
        if begins == "one":
            two.call(ran, folder=str(tmp_path), out=str(out), kind=kind, resume=True)
        else:
            ran(None, str(tmp_path), str(out), kind, resume=True)
        assert sums(out) == sums(full)
    assert "3 processes cannot share" in str(shared_by(3, full))


def ran_ahead(mesh: Mesh | None, folder: str, out: str, kind: str, resume: bool = False):
    """``ran`` with its batches read ahead in a thread as for a GPU."""
    with unittest.mock.patch.object(
        launch, "read_ahead", lambda batches, device: Prefetched(batches)
    ):
        return ran(mesh, folder, out, kind, resume)


@pytest.mark.parametrize("kind", ["dropout", "examples"])
def test_processes_that_read_ahead_leave_the_same_folder_and_go_on_in_the_middle(
    two, tmp_path, kind
):
    alone, pair, resumed = (tmp_path / name for name in ("alone", "both", "resumed"))
    expected = ran(None, str(tmp_path), str(alone), kind)
    assert two.call(ran_ahead, folder=str(tmp_path), out=str(pair), kind=kind) == [expected] * 2
    resumed.mkdir()
    shutil.copytree(pair / "step-000002", resumed / "step-000002")
    shutil.copy(pair / "run.json", resumed)
    two.call(ran_ahead, folder=str(tmp_path), out=str(resumed), kind=kind, resume=True)
    assert sums(resumed) == sums(pair) == sums(alone) != {}


@pytest.mark.slow
def test_eight_processes_leave_the_folder_of_one(tmp_path):
    more, pool = {"accumulate": 8}, Processes(8)
    for kind in ("dropout", "experts"):
        alone = ran(None, str(tmp_path), str(tmp_path / f"{kind}-1"), kind, more=more)
        answers = pool.call(
            ran, folder=str(tmp_path), out=str(tmp_path / f"{kind}-8"), kind=kind, more=more
        )
        assert answers == [alone] * 8
        assert sums(tmp_path / f"{kind}-8") == sums(tmp_path / f"{kind}-1") != {}
    pool.close()


def test_batches_of_a_validation_are_shared_out_and_all_take_part_in_the_last_round():
    """Each counts once, with one process; all processes compute as often."""
    result = [list(shared_out(range(5), Mesh(Parallel(data=3), rank))) for rank in range(3)]
    assert [[number for number, totals in item if totals] for item in result] == [
        [0, 3],
        [1, 4],
        [2],
    ]
    assert {len(item) for item in result} == {2} and not list(
        shared_out([], Mesh(Parallel(data=3)))
    )


def shared_by(rows: int, out: Path) -> UserError:
    """Message where so many processes would go on with a run."""
    from glassformer.runs.processes import in_pieces
    from glassformer.runs.run_checkpoints import read_json

    mesh = Mesh(Parallel(data=rows))
    with pytest.raises(UserError) as output:
        in_pieces(settings(out.parent, "dropout").train, read_json(out / "run.json"), mesh, out)
    return output.value


def refused(mesh: Mesh, folder: str, out: str) -> list[str]:
    """Messages for a folder that another training holds, for a mistake of the second process alone,
    for settings that do not fit."""
    results = []
    with files.lock(Path(out), "training") if mesh.is_first else files.temporary(Path(folder), "x"):
        mesh.gather_json(0)
        results.append(ran(mesh, folder, out, "dropout"))
    write = shares._add

    def full(*args: object) -> None:
        if mesh.rank == 1:
            raise OSError(28, "No space left on device")
        write(*args)  # type: ignore[arg-type]

    shares._add = full
    try:
        results.append(ran(mesh, folder, out, "dropout"))
    finally:
        shares._add = write
    results.append(
        ran(
            mesh, folder, f"{out}-2", "dropout", more={"parallel.pipeline": "2", "decoder.depth": 1}
        )
    )
    results.append(ran(mesh, folder, f"{out}-2", "dropout", more={"batch": 1, "accumulate": 1}))
    results.append(ran(mesh, folder, f"{out}-2", "dropout", more={"parallel.data": "3"}))
    return results


def test_a_mistake_of_one_is_everybodys_and_leaves_nothing_half_written(two, tmp_path):
    item, second = two.call(refused, folder=str(tmp_path), out=str(tmp_path / "out"))
    assert item == second
    stored, full, axis, rows, count = item
    assert stored.startswith("Another process is training in") and full.startswith(
        "The disk that holds"
    )
    assert axis.startswith("parallel.pipeline 2 is more stages") and "too few for 2 pieces" in rows
    assert "data 3 is for 3, but there are 2 processes" in count
    assert not list((tmp_path / "out").glob("*step*")) and not list(
        (tmp_path / "out").glob(".*.part")
    )


def looked_through(mesh: Mesh, folder: str, out: str) -> int:
    """Number of times that this process reads all of a corpus, or of its tokens, to check them."""
    results, sha256 = [], files.sha256
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
    assert first >= 4 and second == 0

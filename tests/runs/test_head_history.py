"""Scores over a run's checkpoints are those of each checkpoint, beside the log's losses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import glassformer
from glassformer.cli import main
from mistakes import mistake
from runs.test_replay import corpus, saved_run, thinned  # noqa: F401

SIZES = {"draws": 2, "length": 6}


@pytest.fixture(scope="module")
def history(saved_run, tmp_path_factory):  # noqa: F811
    few = thinned(saved_run, tmp_path_factory.mktemp("few") / "run", 2, 5, 9)
    glassformer.replay(few, 3)
    return glassformer.head_history(few, **SIZES)


def test_each_step_has_the_scores_of_its_checkpoint(history, saved_run):  # noqa: F811
    log = {line["step"]: line for line in map(json.loads, (saved_run / "log.jsonl").open())}
    assert [moment.step for moment in history.steps] == [2, 3, 5, 9]
    assert [moment.valid_loss is None for moment in history.steps] == [False, True, True, False]
    for moment in history.steps:
        line = log[moment.step]
        assert (moment.loss, moment.valid_loss) == (line["loss"], line.get("valid_loss"))
        loaded = glassformer.load(saved_run / f"step-{moment.step:06d}")
        assert moment.heads == glassformer.head_scores(*loaded, **SIZES).heads
    assert history.steps[0].heads != history.steps[-1].heads


def labelled(history, labels):
    """The history with these labels of its first head, a list of them for each step."""
    steps = [
        replace(x, heads=[replace(x.heads[0], labels=names), *x.heads[1:]])
        for x, names in zip(history.steps, labels, strict=True)
    ]
    return replace(history, steps=steps)


def test_a_star_is_a_label(history):
    for names in ((("first",), ("first", "induction")) * 2, (("induction",), ()) * 2):
        changed = labelled(history, names)
        rows = changed.lines("induction", 4)
        column = rows[0].split().index("decoder.blocks.0.attn[0]") - len(rows[0].split())
        stars = [row.split()[column].endswith("*") for row in rows[1:]]
        assert stars == ["induction" in labels for labels in names]
        heads = [head for moment in changed.steps for head in moment.heads]
        assert "".join(rows).count("*") == sum("induction" in head.labels for head in heads)


def test_the_highest_come_first(history):
    heads = history.steps[-1].heads
    names = [f"{x.path}[{x.head}]" for x in heads]
    order = sorted(range(len(heads)), key=lambda at: -heads[at].scores["entropy"])
    rows = history.lines("entropy", 3)
    assert rows[0].split()[3:] == [names[at] for at in order[:3]]
    assert float(rows[2].split()[2]) == pytest.approx(
        history.steps[1].heads[order[0]].scores["entropy"], abs=1e-3
    )
    with mistake('no score "size"'):
        history.lines("size", 1)


def test_the_command(saved_run, tmp_path, capsys):  # noqa: F811
    few = thinned(saved_run, tmp_path / "few", 1, 9)
    options = ["--over-time", "--draws", "2", "--length", "6"]
    assert main(["heads", str(few), *options, "--top", "2", "--sort", "previous"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["1", "9"]
    assert len(lines[0].split()) == 5
    assert main(["heads", str(few), *options, "--json"]) == 0
    assert [x["step"] for x in json.loads(capsys.readouterr().out)["steps"]] == [1, 9]
    assert main(["heads", str(few), *options, "--dtype", "float32"]) == 2
    assert "leave --device and --dtype out" in capsys.readouterr().err
    with mistake("holds no checkpoint"):
        glassformer.head_history(tmp_path)

"""Scores over a run's checkpoints are those of each checkpoint, beside the log's losses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import glassformer
from glassformer.cli import main
from mistakes import mistake
from runs.test_replay import corpus, thinned, whole  # noqa: F401

SIZES = {"draws": 2, "length": 6}


@pytest.fixture(scope="module")
def history(whole, tmp_path_factory):  # noqa: F811
    few = thinned(whole, tmp_path_factory.mktemp("few") / "run", 2, 5, 9)
    glassformer.replay(few, 3)
    return glassformer.head_history(few, **SIZES)


def test_each_step_has_the_scores_of_its_checkpoint(history, whole):  # noqa: F811
    log = {line["step"]: line for line in map(json.loads, (whole / "log.jsonl").open())}
    assert [moment.step for moment in history.steps] == [2, 3, 5, 9]
    assert [moment.valid_loss is None for moment in history.steps] == [False, True, True, False]
    for moment in history.steps:
        line = log[moment.step]
        assert (moment.loss, moment.valid_loss) == (line["loss"], line.get("valid_loss"))
        loaded = glassformer.load(whole / f"step-{moment.step:06d}")
        assert moment.heads == glassformer.head_scores(*loaded, **SIZES).heads
    assert history.steps[0].heads != history.steps[-1].heads


def labelled(history, labels):
    """The history with these labels of its first head, a list of them for each step."""
    steps = [
        replace(x, heads=[replace(x.heads[0], labels=names), *x.heads[1:]])
        for x, names in zip(history.steps, labels, strict=True)
    ]
    return replace(history, steps=steps)


def test_since_when_a_head_has_its_label(history):
    for labels, step in (
        ("nnnn", None),
        ("nnny", 9),
        ("ynyy", 5),
        ("yyyy", 2),
        ("yyyn", None),
    ):
        names = [("first", "induction") if letter == "y" else ("first",) for letter in labels]
        assert labelled(history, names).since("induction", 0) == step
    changed = labelled(history, names[:2] * 2)
    text = "\n".join(changed.lines("induction", 4))
    heads = [head for moment in changed.steps for head in moment.heads]
    assert text.count("*") == sum("induction" in head.labels for head in heads) >= 4
    assert "decoder.blocks.0.attn[0]: induction above its baseline from step 2 on." in text


def test_the_highest_come_first(history):
    heads = history.steps[-1].heads
    places = history.highest("entropy", 3)
    assert [heads[at].scores["entropy"] for at in places] == sorted(
        (head.scores["entropy"] for head in heads), reverse=True
    )[:3]
    rows = history.lines("entropy", 3)
    assert rows[0].split()[3:] == [history.name(at) for at in places]
    assert rows[-2].split()[0] == "9" and float(rows[-2].split()[3]) == pytest.approx(
        heads[places[0]].scores["entropy"], abs=1e-3
    )
    with mistake('no score "size"'):
        history.highest("size", 1)


def test_it_shows_itself_and_is_a_command(history, whole, tmp_path, capsys):  # noqa: F811
    assert "induction" in history._repr_html_()
    rows = history.save(tmp_path / "heads.csv").read_text().splitlines()
    assert len(rows) > 4 * len(history.steps[0].heads)
    few = thinned(whole, tmp_path / "few", 1, 9)
    options = ["--over-time", "--draws", "2", "--length", "6"]
    assert main(["heads", str(few), *options, "--top", "2", "--sort", "previous"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["1", "9"]
    assert len(lines[0].split()) == 5
    assert main(["heads", str(few), *options, "--json"]) == 0
    assert [x["step"] for x in json.loads(capsys.readouterr().out)["steps"]] == [1, 9]
    with mistake("holds no checkpoint"):
        glassformer.head_history(tmp_path)

"""The verbs for every shape, from a run file to an answer, and what they say to the wrong model."""

from __future__ import annotations

import contextlib
import json
import shlex

import pytest
from safetensors.numpy import load_file

from glassformer.cli import main
from mistakes import SENTENCES

SIZE = (
    "--steps 2 --dim 32 --batch 2 --train.context 32 --sample-every 0 --evaluate-every 0"
    " --save-every 0 --train.tensorboard false --train.dtype float32"
)


LINES = [
    "the cat sat on the mat",
    "a dog ran up the hill",
    "the man was old",
    "a red house by the sea",
    "we ran",
    "the sea was red",
] * 4


TRAINED = {
    "pair": "--recipe glass/pair-3m PAIRS",
    "alone": "--recipe glass/1m PAIRS",
    "labels": "--recipe glass/encoder-1m --data.type Examples --data.train labels.tsv"
    " --data.tokenizer bpe --data.vocab 300 --objective Classify",
    "masked": "--recipe glass/encoder-1m TEXT --objective Masked",
    "plain": "--recipe glass/200k TEXT",
}


DATA = {
    "PAIRS": '--data.type Examples --data.train \'{source = "source", target = "target"}\''
    " --data.tokenizer words --objective Seq2Seq",
    "TEXT": "--data.train source --data.tokenizer bpe --data.vocab 300",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Examples of each kind, and a model of each shape trained for two steps on them."""
    folder = tmp_path_factory.mktemp("shapes")
    labels = [f"{line}\t{'new' if 'red' in line else 'old'}" for line in LINES]
    texts = {
        "source": LINES,
        "target": [" ".join(reversed(line.split())) for line in LINES],
        "labels.tsv": labels,
        "labels.short": ["one line"],
        "other.tsv": ["a cat\tblue"],
        "long": ["the cat sat " * 500],
    }
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    with contextlib.chdir(folder):
        for name, line in TRAINED.items():
            for word, data in DATA.items():
                line = line.replace(word, data)
            assert main(shlex.split(f"train --out {name} {line} {SIZE}")) == 0
    return folder


@pytest.fixture
def terminal(home, terminal, monkeypatch):
    monkeypatch.chdir(home)
    return terminal


def rows_of(output):
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("name", ["pair", "alone"])
def test_translate_and_its_figures(name, terminal):
    rows = rows_of(terminal(f"translate {name} 'the cat sat' 'a dog' --json --max-new 5"))
    assert [row["source"] for row in rows] == ["the cat sat", "a dog"]
    assert all(len(row["best"][0]["logprobs"]) == len(row["best"][0]["tokens"]) for row in rows)
    data = terminal.json(
        f"eval {name} --data source --target target --figures bleu,exact --max-new 5 --tokenised"
        " --lengths 4"
    )
    assert data["texts"] == len(LINES)
    assert set(data["by length"]) == {"1-4", "5+"}


def test_translate_begins_as_told(terminal):
    outputs = []
    for start in ("", "--start the", "--start 'sea red the'"):
        data = terminal.json(f"translate pair 'the cat sat' --max-new 4 --beams 1 {start}")
        outputs.append(data["best"][0]["logprobs"])
    assert outputs[0] != outputs[1] != outputs[2]


def test_labels(terminal):
    for row in rows_of(terminal("classify labels 'the red house' 'the man' --json")):
        assert row["new"] + row["old"] == pytest.approx(1.0, abs=1e-5)
    assert terminal.json("eval labels --data labels.tsv")["texts"] == len(LINES)


def test_blanks_and_vectors(terminal):
    assert len(terminal.json("fill masked 'the ___ sat on the ___' --order sure")[0]) == 5
    terminal("embed masked 'the cat' 'a dog' --out vectors.safetensors")
    assert load_file("vectors.safetensors")["vectors"].shape == (2, 32)


@pytest.mark.parametrize("command", ["embed masked", "classify labels"])
def test_a_text_is_cut_where_that_is_asked_for(command, terminal):
    terminal(f"{command} --prompts long --truncate")
    assert "1 of 1 texts were truncated" in terminal.notes


@pytest.mark.parametrize(
    "line, message",
    SENTENCES["shapes"].items(),
)
def test_one_sentence(terminal, line, message):
    error = terminal.refused(line).strip().splitlines()[-1]
    assert error.startswith("glassformer: ")
    assert message in error

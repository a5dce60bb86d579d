"""The verbs for every shape, from a run file to an answer, and what they say to the wrong model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.cli import main

SIZE = [
    "--dim",
    "32",
    "--batch",
    "2",
    "--train.context",
    "32",
    "--sample-every",
    "0",
    "--evaluate-every",
    "0",
]
SIZE += ["--save-every", "0", "--train.tensorboard", "false", "--train.dtype", "float32"]
WORDS = (
    "the cat sat on the mat|a dog ran up the hill|the man was old|a red house by the sea|we "
    "ran|the sea was red"
)
PAIRS = [(line, " ".join(reversed(line.split()))) for line in WORDS.split("|")] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of each kind, and a model of each shape trained for two steps on them."""
    home = tmp_path_factory.mktemp("shapes")
    (home / "source").write_text("\n".join(a for a, _ in PAIRS) + "\n")
    (home / "target").write_text("\n".join(b for _, b in PAIRS) + "\n")
    (home / "labels.tsv").write_text(
        "\n".join(f"{a}\t{'new' if 'red' in a else 'old'}" for a, _ in PAIRS) + "\n"
    )
    (home / "text.txt").write_text("\n".join(a for a, _ in PAIRS))
    pair = f'{{source = "{home}/source", target = "{home}/target"}}'
    pairs = [
        "--data.type",
        "Examples",
        "--data.train",
        pair,
        "--data.tokenizer",
        "words",
        "--objective",
        "Seq2Seq",
    ]
    label = [
        "--data.type",
        "Examples",
        "--data.train",
        f"{home}/labels.tsv",
        "--data.tokenizer",
        "bpe",
    ]
    label += ["--data.vocab", "300", "--objective", "Classify"]
    plain = ["--data.train", f"{home}/text.txt", "--data.tokenizer", "bpe", "--data.vocab", "300"]
    runs = {
        "pair": ["--recipe", "glass/pair-3m", *pairs],
        "alone": ["--recipe", "glass/1m", *pairs],
        "labels": ["--recipe", "glass/encoder-1m", *label],
        "masked": ["--recipe", "glass/encoder-1m", *plain, "--objective", "Masked"],
        "plain": ["--recipe", "glass/200k", *plain],
    }
    for name, words in runs.items():
        assert main(["train", "--out", str(home / name), "--steps", "2", *words, *SIZE]) == 0
    return home


def test_translate_and_its_figures(folder, capsys):
    for name in ("pair", "alone"):
        assert (
            main(
                [
                    "translate",
                    str(folder / name),
                    "the cat sat",
                    "a dog",
                    "--json",
                    "--max-new",
                    "5",
                ]
            )
            == 0
        )
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["source"] for line in lines] == ["the cat sat", "a dog"]
        assert all(
            len(line["best"][0]["logprobs"]) == len(line["best"][0]["tokens"]) for line in lines
        )
        files = ["--data", str(folder / "source"), "--target", str(folder / "target")]
        more = [
            "--figures",
            "bleu,exact",
            "--max-new",
            "5",
            "--tokenised",
            "--lengths",
            "4",
            "--json",
        ]
        assert main(["eval", str(folder / name), *files, *more]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["texts"] == len(PAIRS) and set(data["by length"]) == {"1-4", "5+"}


def test_translate_begins_as_told(folder, capsys):
    outputs = []
    for start in ([], ["--start", "the"], ["--start", "sea red the"]):
        words = [
            "translate",
            str(folder / "pair"),
            "the cat sat",
            "--json",
            "--max-new",
            "4",
            "--beams",
            "1",
        ]
        assert main([*words, *start]) == 0
        outputs.append(json.loads(capsys.readouterr().out)["best"][0]["logprobs"])
    assert outputs[0] != outputs[1] != outputs[2]


def test_labels(folder, capsys):
    assert main(["classify", str(folder / "labels"), "the red house", "the man", "--json"]) == 0
    for line in capsys.readouterr().out.splitlines():
        data = json.loads(line)
        assert data["new"] + data["old"] == pytest.approx(1.0, abs=1e-5)
    assert (
        main(["eval", str(folder / "labels"), "--data", str(folder / "labels.tsv"), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["texts"] == len(PAIRS)


def test_blanks_and_vectors(folder, capsys):
    assert (
        main(
            ["fill", str(folder / "masked"), "the ___ sat on the ___", "--order", "sure", "--json"]
        )
        == 0
    )
    assert len(json.loads(capsys.readouterr().out)[0]) == 5
    out = folder / "vectors.safetensors"
    assert main(["embed", str(folder / "masked"), "the cat", "a dog", "--out", str(out)]) == 0
    from safetensors import safe_open

    with safe_open(out, "numpy") as file:
        assert file.get_tensor("vectors").shape == (2, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "masked", "a cat"], "fill"),
        (["generate", "masked", "a cat"], "fill"),
        (["fill", "pair", "a ___"], "generate"),
        (["fill", "masked", "a cat"], "no blank"),
        (["fill", "masked", "___", "--top", "0"], "top is 0"),
        (["classify", "masked", "a cat"], "no labels"),
        (["classify", "labels", "a cat", "--second", "b", "--second", "c"], "as many"),
        (["embed", "pair", "a cat"], "use an encoder"),
        (["embed", "masked", ""], "empty"),
        (["translate", "pair", "a cat", "--beams", "0"], "beams is 0"),
        (["translate", "pair", "a cat", "--best", "9"], "best is 9"),
        (["translate", "pair", " "], "empty"),
        (["translate", "pair", "a cat", "--start", "<2de>"], 'no token "<2de>"'),
        (["translate", "pair", "a cat", "--start", "999999"], "999999 is out of range"),
        (["translate", "pair", "a cat", "--start", ""], "at least one"),
        (
            ["eval", "plain", "--data", "source", "--target", "target"],
            "was trained to continue text (Causal)",
        ),
        (["eval", "pair", "--data", "source", "--target", "labels.short"], "lines"),
        (["eval", "labels", "--data", "other.tsv"], "not one of the set"),
        (
            ["eval", "pair", "--data", "source", "--target", "target", "--figures", "blue"],
            'no figure "blue"',
        ),
        (["eval", "pair", "--data", "source", "--target", "target", "--lengths", "9,4"], "rise"),
        (["eval", "labels", "--data", "labels.tsv", "--columns", "text"], "PART=COLUMN"),
    ],
)
def test_one_sentence(folder, capsys, words, message):
    (folder / "labels.short").write_text("one line\n")
    (folder / "other.tsv").write_text("a cat\tblue\n")
    present = [str(folder / word) if (folder / word).exists() and word else word for word in words]
    assert main(present) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("glassformer: ") and message in error

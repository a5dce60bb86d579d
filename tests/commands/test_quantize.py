"""``glassformer quantize`` and files for llama.cpp, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import glassformer
import tiny
from glassformer import cli
from glassformer.core import files
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train
from glassformer.fast.quantized import quantized
from glassformer.formats import gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a tokenizer, and a text beside it."""
    place = tmp_path_factory.mktemp("quantize")
    text = "the cat sat on the mat and the dog sat on the cat. " * 150
    (place / "text.txt").write_text(text)
    model, _ = glassformer.load("llama/stories260k")
    glassformer.save(model, place / "model", train("bpe", [text], 300))
    return place


def run(*words: object) -> int:
    return cli.main([str(word) for word in words]) or 0


def test_a_folder_is_made_with_its_report(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, image = tmp_path / "few", tmp_path / "harm.svg"
    options = (
        "--bits",
        4,
        "--calibrate",
        folder / "text.txt",
        "--tokens",
        512,
        "--measure",
        256,
        "--picture",
        image,
    )
    assert run("quantize", folder / "model", out, *options) == 0
    output = capsys.readouterr().out
    assert (
        f"{image}: the harm" in output and "nats a token" in output and "--calibrate" not in output
    )
    assert "calibrated" in output and "became" in output and "<svg" in image.read_text()
    report = json.loads((out / "quantization.json").read_text())
    assert len(report["rows"]) == 36 and report["bits"] == 4 and report["perplexity"] > 1
    model, tokenizer = glassformer.load(out)
    assert len(quantized(model)) == 36 and tokenizer is not None
    assert run("generate", out, "the cat", "--max-new", 3) == 0
    assert run("quantize", folder / "model", tmp_path / "other", "--bits", 8, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bits"] == 8


def test_weights_and_report_appear_at_once(folder, tmp_path, monkeypatch):
    """Killed at any file, no folder is left that the same command refuses."""
    write, calls = files.write, 0

    def dying(path, content):
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(files, "write", dying)
    out = tmp_path / "few"
    for count in range(10):
        calls = count
        if run("quantize", folder / "model", out, "--bits", 8) == 0:
            break
        assert not out.exists()
    assert count == 5 and (out / "quantization.json").is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--bits", 3), "no weights of 3 bits"),
        (("--bits", 4, "--group", 48), "Groups of 48"),
        (("--bits", 4, "--head", 4), "not 4"),
        (("--bits", 4, "--tokens", 0), "give 1 or more"),
        (("--bits", 4, "--top", -1), "give 0 or more"),
        (("--bits", 4, "--picture", "x.gif"), "neither .svg nor .png"),
        (("--bits", 4, "--calibrate", "nowhere.txt"), "nowhere.txt"),
        (("--bits", 4, "--target", "text.de"), "--target goes with --calibrate"),
        (
            ("--bits", 4, "--calibrate", "a.en", "--target", "a.de"),
            "is no encoder-decoder; leave --target out",
        ),
        (("--bits", 4, "--group", 4096), "the longest row here has 172 numbers; give 192 or less"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(
    folder,
    tmp_path,
    capsys,
    words,
    sentence,
):
    assert run("quantize", folder / "model", tmp_path / "out", *words) != 0
    stderr = capsys.readouterr().err
    assert sentence in stderr and "Traceback" not in stderr and not (tmp_path / "out").exists()


def test_a_translator_with_two_vocabularies_is_calibrated_with_pairs(tmp_path, capsys):
    sources, targets = ["a b c d e"] * 40, ["f g h i j k"] * 40
    for name, lines in (("a.en", sources), ("a.de", targets)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    model = build_model(tiny.ALL["two vocabularies"], seed=0)
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    reads, writes = (train("char", group, specials=specials) for group in (sources, targets))
    glassformer.save(model, tmp_path / "pair", writes, source_tokenizer=reads)
    options = ("--bits", 4, "--calibrate", tmp_path / "a.en", "--tokens", 100, "--measure", 30)
    assert run("quantize", tmp_path / "pair", tmp_path / "few", *options) != 0
    stderr = capsys.readouterr().err
    assert "a vocabulary of its own" in stderr and not (tmp_path / "few").exists()
    assert (
        run(
            "quantize", tmp_path / "pair", tmp_path / "few", *options, "--target", tmp_path / "a.de"
        )
        == 0
    )
    assert "perplexity change" in capsys.readouterr().out
    assert run("translate", tmp_path / "few", "a b c", "--max-new", 3) == 0


def test_without_a_text_it_is_said_what_one_would_add(folder, tmp_path, capsys):
    assert run("quantize", folder / "model", tmp_path / "few", "--bits", 4, "--group", 128) == 0
    captured = capsys.readouterr()
    assert (
        "--calibrate DATA, a text, adds" in captured.out
        and " - " not in captured.out
        and "KL" not in captured.out
    )
    assert "31 of 36 matrices have rows shorter than a group of 128" in captured.err


def test_a_quantised_folder_does_not_train(folder, tmp_path, capsys):
    few = tmp_path / "few"
    assert run("quantize", folder / "model", few, "--bits", 8) == 0
    assert run("quantize", few, tmp_path / "again", "--bits", 4) != 0
    assert "quantised already" in capsys.readouterr().err
    options = (
        "--data.train",
        folder / "text.txt",
        "--steps",
        2,
        "--train.context",
        32,
        "--train.batch",
        2,
    )
    assert run("train", "--from", few, "--out", tmp_path / "run", *options) != 0
    assert "codes do not train" in capsys.readouterr().err
    assert (
        run("train", "--from", few, "--out", tmp_path / "lora", "--train.tune", "LoRA", *options)
        == 0
    )
    model, _ = glassformer.load(tmp_path / "lora")
    assert quantized(model)
    assert run("quantize", tmp_path / "lora", tmp_path / "again", "--bits", 4) != 0
    assert "adapter on quantised weights" in capsys.readouterr().err
    assert run("convert", tmp_path / "lora", "--layout", "gguf", "--out", tmp_path / "a.gguf") != 0
    assert "has an adapter beside quantised weights" in capsys.readouterr().err
    assert run("convert", few, "--layout", "gguf", "--out", tmp_path / "few.gguf") == 0
    assert run("quantize", tmp_path / "few.gguf", tmp_path / "again", "--bits", 8) != 0
    assert "quantised already" in capsys.readouterr().err and not (tmp_path / "again").exists()


def test_a_model_goes_to_llama_cpp_and_back(folder, tmp_path, capsys):
    path = tmp_path / "a.gguf"
    assert (
        run("convert", folder / "model", "--layout", "gguf", "--numbers", "q8_0", "--out", path)
        == 0
    )
    assert run("generate", path, "the cat", "--max-new", 3, "--seed", 1) == 0
    assert run("convert", "--from", "gguf", path, "--out", tmp_path / "back") == 0
    assert quantized(glassformer.load(tmp_path / "back")[0])
    assert (
        run("convert", tmp_path / "back", "--layout", "gguf", "--out", tmp_path / "again.gguf") == 0
    )
    assert gguf.name(tmp_path / "again.gguf") == "back" and gguf.name(path) == "model"
    assert "of Q8_0, " in capsys.readouterr().err
    options = ("--layout", "gguf", "--numbers", "Q4_0", "--out", tmp_path / "few.gguf")
    assert run("convert", tmp_path / "back", *options) != 0 and not (tmp_path / "few.gguf").exists()
    assert "codes of 8 bits, and Q4_0 would round them a second time" in capsys.readouterr().err
    capsys.readouterr()
    for words, sentence in (
        (("--layout", "gguf", "--out", tmp_path / "b"), "is one file"),
        (("--layout", "gguf", "--numbers", "Q5_1", "--out", tmp_path / "b.gguf"), "not in Q5_1"),
        (("--numbers", "Q8_0", "--out", tmp_path / "b"), "goes with --layout gguf"),
        (("--from", "gguf", "--out", tmp_path / "b"), "no .gguf file"),
    ):
        assert run("convert", folder / "model", *words) != 0
        assert sentence in capsys.readouterr().err

"""``glassformer quantize`` and files for llama.cpp, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import glassformer
import tiny
from folders import read_json
from glassformer import cli
from glassformer.core import files
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train
from glassformer.fast.quantized import quantized
from glassformer.formats import gguf
from mistakes import SENTENCES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model with a tokenizer, and a text beside it."""
    place = tmp_path_factory.mktemp("quantize")
    text = "the cat sat on the mat and the dog sat on the cat. " * 150
    (place / "text.txt").write_text(text)
    model, _ = glassformer.load("llama/stories260k")
    glassformer.save(model, place / "model", train("bpe", [text], 300))
    return place


def test_a_folder_is_made_with_its_report(folder, tmp_path, terminal):
    pytest.importorskip("matplotlib")
    out = tmp_path / "few"
    image = tmp_path / "harm.svg"
    output = terminal(
        f"quantize {folder}/model {out} --bits 4 --calibrate {folder}/text.txt --tokens 512"
        f" --measure 256 --picture {image}"
    )
    assert f"{image}: the harm" in output
    assert "<svg" in image.read_text()
    assert "nats a token" in output
    assert "--calibrate" not in output
    assert "calibrated" in output
    assert "became" in output
    report = read_json(out / "quantization.json")
    assert len(report["rows"]) == 36
    assert report["bits"] == 4
    assert report["perplexity"] > 1
    model, tokenizer = glassformer.load(out)
    assert len(quantized(model)) == 36
    assert tokenizer is not None
    terminal(f"generate {out} 'the cat' --max-new 3")
    assert terminal.json(f"quantize {folder}/model {tmp_path}/other --bits 8")["bits"] == 8


def test_weights_and_report_appear_at_once(folder, tmp_path, monkeypatch):
    """Killed at any file, no folder is left that the same command refuses."""
    write = files.write
    calls = 0

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
        if not cli.main(["quantize", f"{folder}/model", str(out), "--bits", "8"]):
            break
        assert not out.exists()
    assert count == 3  # the tokenizer's two files appear at once
    assert (out / "quantization.json").is_file()


@pytest.mark.parametrize(
    "options, sentence",
    SENTENCES["quantize"].items(),
)
def test_bad_input_is_a_sentence_and_leaves_nothing(folder, tmp_path, terminal, options, sentence):
    out = tmp_path / "out"
    assert sentence in terminal.refused(f"quantize {folder}/model {out} {options}")
    assert "Traceback" not in terminal.notes
    assert not out.exists()


def test_a_translator_with_two_vocabularies_is_calibrated_with_pairs(tmp_path, terminal):
    texts = {"en": ["a b c d e"] * 40, "de": ["f g h i j k"] * 40}
    for name, lines in texts.items():
        (tmp_path / f"a.{name}").write_text("\n".join(lines) + "\n")
    model = build_model(tiny.ALL["two vocabularies"], seed=0)
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    reads, writes = (train("char", lines, specials=specials) for lines in texts.values())
    glassformer.save(model, tmp_path / "pair", writes, source_tokenizer=reads)
    line = (
        f"quantize {tmp_path}/pair {tmp_path}/few --bits 4 --calibrate {tmp_path}/a.en"
        " --tokens 100 --measure 30"
    )
    assert "a vocabulary of its own" in terminal.refused(line)
    assert not (tmp_path / "few").exists()
    assert "perplexity change" in terminal(f"{line} --target {tmp_path}/a.de")
    terminal(f"translate {tmp_path}/few 'a b c' --max-new 3")


def test_without_a_text_it_is_said_what_one_would_add(folder, tmp_path, terminal):
    output = terminal(f"quantize {folder}/model {tmp_path}/few --bits 4 --group 128")
    assert "--calibrate DATA, a text, adds" in output
    assert " - " not in output
    assert "KL" not in output
    assert "31 of 36 matrices have rows shorter than a group of 128" in terminal.notes


def test_a_quantized_folder_does_not_train(folder, tmp_path, terminal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    terminal(f"quantize {folder}/model few --bits 8")
    options = f"--data.train {folder}/text.txt --steps 2 --train.context 32 --train.batch 2"
    assert "codes do not train" in terminal.refused(f"train --from few --out run {options}")
    terminal(f"train --from few --out lora --train.tune LoRA {options}")
    assert quantized(glassformer.load("lora")[0])
    terminal("convert few --layout gguf --out few.gguf")
    for line, message in (
        ("quantize few again --bits 4", "quantized already"),
        ("quantize few.gguf again --bits 8", "quantized already"),
        ("quantize lora again --bits 4", "adapter on quantized weights"),
        ("convert lora --layout gguf --out a.gguf", "an adapter beside quantized weights"),
    ):
        assert message in terminal.refused(line)
    assert not Path("again").exists()


def test_a_model_goes_to_llama_cpp_and_back(folder, tmp_path, terminal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    terminal(f"convert {folder}/model --layout gguf --numbers q8_0 --out a.gguf")
    terminal("generate a.gguf 'the cat' --max-new 3 --seed 1")
    terminal("convert --from gguf a.gguf --out back")
    assert quantized(glassformer.load("back")[0])
    terminal("convert back --layout gguf --out again.gguf")
    assert "of Q8_0, " in terminal.notes
    assert gguf.name(Path("again.gguf")) == "back"
    assert gguf.name(Path("a.gguf")) == "model"
    for line, sentence in (
        (
            "back --layout gguf --numbers Q4_0 --out few.gguf",
            "codes of 8 bits, and Q4_0 would round them a second time",
        ),
        ("model --layout gguf --out b", "is one file"),
        ("model --layout gguf --numbers Q5_1 --out b.gguf", "not in Q5_1"),
        ("model --numbers Q8_0 --out b", "goes with --layout gguf"),
        ("model --from gguf --out b", "not a .gguf file"),
    ):
        line = line.replace("model", f"{folder}/model")
        assert sentence in terminal.refused(f"convert {line}")
    assert not Path("few.gguf").exists()

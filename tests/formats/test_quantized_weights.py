"""Models of few bits in files: saved, loaded and made on the fly are the same bits; what does not
fit is refused."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import glassformer
import tiny
from folders import edit_json, read_json
from glassformer.core import memory
from glassformer.core.config import objective as objectives
from glassformer.fast.quantized import QuantizedLayout, quantize_weights, quantized
from glassformer.formats import tuning
from glassformer.formats.checkpoint import Checkpoint
from mistakes import SENTENCES, mistake

RECURRENT = {"gru", "lstm", "cho", "bahdanau", "reader"}


@pytest.mark.parametrize("name", sorted(tiny.ALL.keys() - RECURRENT))
def test_saved_loaded_and_on_the_fly_are_the_same_bits(tmp_path, name):
    bits = 8 if name in ("gpt2", "mixtral") else 4
    plain = tiny.model(name)
    glassformer.save(plain, tmp_path / "plain", layout="glassformer")
    flying, _ = glassformer.load(tmp_path / "plain", bits=bits)
    glassformer.save(flying, tmp_path / "few")
    loaded, _ = glassformer.load(tmp_path / "few")
    quantize_weights(plain, QuantizedLayout(bits))
    assert quantized(loaded).keys() == quantized(plain).keys()
    assert quantized(plain)
    for model in (loaded, plain):
        assert torch.equal(tiny.logits(model), tiny.logits(flying))
    size = sum(weight.nbytes for weight in loaded.parameters())
    assert (tmp_path / "few" / "model.safetensors").stat().st_size < size + 16_384


def test_a_published_folder_is_quantized_on_the_fly(tmp_path):
    glassformer.save(tiny.model("llama"), tmp_path, layout="hf")
    flying, _ = glassformer.load(tmp_path, bits=4, group=64, head=16, dtype="bfloat16")
    stored = quantized(flying)
    assert {weight.quantized_data.group for weight in stored.values()} == {64}
    assert "head.proj.weight" not in stored
    assert next(flying.parameters()).dtype == torch.bfloat16


@pytest.fixture
def folder(tmp_path):
    model = tiny.model("llama")
    quantize_weights(model, QuantizedLayout(4))
    glassformer.save(model, tmp_path / "few")
    return tmp_path / "few"


def test_the_file_says_what_is_needed_to_read_it(folder):
    """By the documented layout and the safetensors library alone, without this one's code."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        page = json.loads(file.metadata()["quantization"])
    assert page == read_json(folder / "config.json")["quantization"]
    assert page == {"version": 1, "group": 32, "dtype": "float32"}
    tensors = load_file(path)
    model, _ = glassformer.load(folder)
    for name, weight in quantized(model).items():
        codes = tensors[f"{name}.codes"]
        scales = tensors[f"{name}.scales"].float()
        if codes.dtype == torch.uint8:
            codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).float() - 8
        group = torch.arange(codes.shape[-1]) // page["group"]
        assert torch.equal(codes * scales[..., group], weight.decoded())


def test_what_it_cannot_be(folder, tmp_path):
    with mistake("quantized already"):
        glassformer.load(folder, bits=8)
    model, _ = glassformer.load(folder)
    with mistake("No published layout"):
        glassformer.save(model, tmp_path / "hf", layout="hf")
    tuning.tune(model, objectives.LoRA(rank=2, target_modules=("*.q",)))
    with mistake("give base"):
        glassformer.save(model, tmp_path / "whole")
    assert list(tmp_path.iterdir()) == [folder]


def test_an_adapter_on_a_quantized_model_comes_back(folder, tmp_path):
    model, _ = glassformer.load(folder)
    before = tiny.logits(model)
    tuning.tune(model, objectives.LoRA(rank=2, target_modules=("*.q", "*.v")))
    with torch.no_grad():
        for layer in tuning.adapted(model).values():
            layer.up.normal_(std=0.2)
    glassformer.save(model, tmp_path / "adapter", base=str(folder))
    back, _ = glassformer.load(tmp_path / "adapter")
    assert quantized(back).keys() == quantized(model).keys()
    assert not torch.equal(tiny.logits(model), before)
    assert torch.equal(tiny.logits(back), tiny.logits(model))


@pytest.mark.parametrize("changes, sentence", SENTENCES["quantized weights"])
def test_a_page_that_lies_is_refused(folder, changes, sentence):
    page = {"version": 1, "group": 32, "dtype": "float32"} | changes
    edit_json(folder / "config.json", quantization=page)
    with mistake(sentence):
        glassformer.load(folder)


CODES, SCALES = (f"decoder.blocks.0.attn.q.weight.{kind}" for kind in ("codes", "scales"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors.pop(SCALES),
        lambda tensors: tensors.pop(CODES),
        lambda tensors: tensors.update({CODES: tensors[CODES][:, :-1].contiguous()}),
        lambda tensors: tensors.update({SCALES: tensors[SCALES].float()}),
        lambda tensors: tensors.update({CODES: tensors[CODES].half()}),
        lambda tensors: tensors[SCALES].fill_(float("inf")),
        lambda tensors: tensors.update({"another.codes": tensors[CODES].clone()}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, spoil):
    path = folder / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(path).items()}
    spoil(tensors)
    save_file(tensors, path)
    with mistake(r"\.codes|\.scales|attn\.q"):
        glassformer.load(folder)


def test_a_training_begins_from_the_same_bits(folder):
    """LoRA loads its base by ``model_as`` too."""
    file = Checkpoint.open(folder)
    fitted = file.model_as(file.config, seed=3, dtype=torch.float32)
    assert not fitted.new
    assert torch.equal(tiny.logits(fitted.model), tiny.logits(file.model()))


def test_the_memory_that_is_asked_for_is_that_of_few_bits(tmp_path, monkeypatch):
    """A model fits in 8 bits where it does not fit whole; one that is drawn stands there whole
    first, and says so."""
    model = tiny.model("llama")
    glassformer.save(model, tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    total = sum(w.nbytes for w in model.parameters())
    quantize_weights(model, QuantizedLayout(8))
    few = sum(weight.nbytes for weight in model.parameters())
    assert few < total / 2
    free = few
    monkeypatch.setattr(memory, "available_memory", lambda *_: free)
    with mistake("float32"):
        checkpoint.model()
    again = checkpoint.model(bits=8)
    assert torch.equal(tiny.logits(again), tiny.logits(model))
    assert len(quantized(again)) == len(quantized(model))
    free = few - 1
    message = f"take {re.escape(memory.gibibytes(few))} in 8 bits and cpu has"
    with mistake(message):
        checkpoint.model(bits=8)
    free = 40 << 30
    message = r"take 69\.\d+ GiB in 8 bits \(262\.\d+ GiB in float32 while"
    with mistake(message):
        Checkpoint.open("llama/3-70b").model(bits=8)

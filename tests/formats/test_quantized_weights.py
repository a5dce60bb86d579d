"""Models of few bits in files: saved, loaded and made on the fly are the same bits; what does not
fit is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import glassformer
import tiny
from glassformer.core.config import objective as objectives
from glassformer.core.errors import UserError
from glassformer.core.nn import Model
from glassformer.core.nn.model import inference
from glassformer.fast.quantized import QuantizedLayout, quantize_weights, quantized
from glassformer.formats import lora
from glassformer.formats.checkpoint import Checkpoint

RECURRENT = {"gru", "lstm", "cho", "bahdanau", "reader"}


def logits_of(model: Model) -> torch.Tensor:
    sides = {"source": tiny.tokens(3, 12, seed=5)} if hasattr(model, "encode") else {}
    with inference(model):
        return model(tiny.tokens(), **sides).logits


def saved(folder: Path, name: str = "llama", bits: int = 4) -> Path:
    model = tiny.model(tiny.ALL[name])
    quantize_weights(model, QuantizedLayout(bits))
    glassformer.save(model, folder)
    return folder


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", sorted(tiny.ALL.keys() - RECURRENT))
def test_saved_loaded_and_on_the_fly_are_the_same_bits(tmp_path, name, bits):
    plain = tiny.model(tiny.ALL[name])
    glassformer.save(plain, tmp_path / "plain", layout="glassformer")
    flying, _ = glassformer.load(tmp_path / "plain", bits=bits)
    glassformer.save(flying, tmp_path / "few")
    loaded, _ = glassformer.load(tmp_path / "few")
    quantize_weights(plain, QuantizedLayout(bits))
    assert quantized(loaded).keys() == quantized(plain).keys() and quantized(plain)
    assert torch.equal(logits_of(loaded), logits_of(flying)) and torch.equal(
        logits_of(plain), logits_of(flying)
    )
    size = sum(weight.nbytes for weight in loaded.parameters())
    assert (tmp_path / "few" / "model.safetensors").stat().st_size < size + 16_384


def test_a_published_folder_is_quantised_on_the_fly(tmp_path):
    model = tiny.model(tiny.DECODERS["llama"])
    glassformer.save(model, tmp_path / "hf", layout="hf")
    flying, _ = glassformer.load(tmp_path / "hf", bits=4, group=64, head=16, dtype="bfloat16")
    stored = quantized(flying)
    assert {weight.quantized_data.group for weight in stored.values()} == {
        64
    } and "head.proj.weight" not in stored
    assert next(flying.parameters()).dtype == torch.bfloat16


def test_the_file_says_what_is_needed_to_read_it(tmp_path):
    """By the documented layout and the safetensors library alone, without this one's code."""
    folder = saved(tmp_path / "few")
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        page = json.loads(file.metadata()["quantization"])
    assert page == json.loads((folder / "config.json").read_text())["quantization"]
    assert page == {"version": 1, "group": 32, "dtype": "float32"}
    tensors = load_file(path)
    model, _ = glassformer.load(folder)
    for name, weight in quantized(model).items():
        codes, scales = tensors[f"{name}.codes"], tensors[f"{name}.scales"].float()
        if codes.dtype == torch.uint8:
            pairs = torch.empty(*codes.shape[:-1], 2 * codes.shape[-1])
            pairs[..., 0::2], pairs[..., 1::2] = (codes & 15).float() - 8, (codes >> 4).float() - 8
            codes = pairs
        group = torch.arange(codes.shape[-1]) // page["group"]
        assert torch.equal(codes * scales[..., group], weight.decoded())


def test_what_it_cannot_be(tmp_path):
    folder = saved(tmp_path / "few")
    with pytest.raises(UserError, match="quantised already"):
        glassformer.load(folder, bits=8)
    model, _ = glassformer.load(folder)
    with pytest.raises(UserError, match="No published layout"):
        glassformer.save(model, tmp_path / "hf", layout="hf")
    lora.tune(model, objectives.LoRA(rank=2, target_modules=("*.q",)))
    with pytest.raises(UserError, match="give base"):
        glassformer.save(model, tmp_path / "whole")
    assert not (tmp_path / "hf").exists() and not (tmp_path / "whole").exists()


def test_an_adapter_on_a_quantised_model_comes_back(tmp_path):
    folder = saved(tmp_path / "few")
    model, _ = glassformer.load(folder)
    before = logits_of(model)
    lora.tune(model, objectives.LoRA(rank=2, target_modules=("*.q", "*.v")))
    with torch.no_grad():
        for layer in lora.adapted(model).values():
            layer.up.normal_(std=0.2)
    glassformer.save(model, tmp_path / "adapter", base=str(folder))
    back, _ = glassformer.load(tmp_path / "adapter")
    assert quantized(back).keys() == quantized(model).keys() and not torch.equal(
        logits_of(model), before
    )
    assert torch.equal(logits_of(back), logits_of(model))


def _page(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "quantization": {**raw["quantization"], **changes}}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, "upgrade glassformer"),
        ({"version": True}, "upgrade glassformer"),
        ({"group": 64}, "in groups of 64"),
        ({"group": 0}, "groups of 0"),
        ({"group": "x"}, "group"),
        ({"dtype": "int3"}, "int3"),
        ({"more": 1}, "more"),
    ],
)
def test_a_page_that_lies_is_refused(tmp_path, changes, sentence):
    folder = saved(tmp_path / "few")
    _page(folder, **changes)
    with pytest.raises(UserError, match=sentence):
        glassformer.load(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        "no scales",
        "no codes",
        "cut codes",
        "scales of fp32",
        "codes of fp16",
        "infinite scale",
        "one more",
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, spoil):
    folder = saved(tmp_path / "few")
    path, name = folder / "model.safetensors", "decoder.blocks.0.attn.q.weight"
    tensors = {key: value.clone() for key, value in load_file(path).items()}
    codes, scales = f"{name}.codes", f"{name}.scales"
    if spoil == "no scales":
        del tensors[scales]
    elif spoil == "no codes":
        del tensors[codes]
    elif spoil == "cut codes":
        tensors[codes] = tensors[codes][:, :-1].contiguous()
    elif spoil == "scales of fp32":
        tensors[scales] = tensors[scales].float()
    elif spoil == "codes of fp16":
        tensors[codes] = tensors[codes].half()
    elif spoil == "infinite scale":
        tensors[scales][0, 0] = float("inf")
    else:
        tensors["another.codes"] = tensors[codes].clone()
    save_file(tensors, path)
    with pytest.raises(UserError, match=r"\.codes|\.scales|attn\.q"):
        glassformer.load(folder)


def test_a_training_begins_from_the_same_bits(tmp_path):
    """LoRA loads its base by ``model_as`` too."""
    folder = saved(tmp_path / "few")
    file = Checkpoint.open(folder)
    fitted = file.model_as(file.config, seed=3, dtype=torch.float32)
    assert not fitted.new and torch.equal(logits_of(fitted.model), logits_of(file.model()))


def test_the_memory_that_is_asked_for_is_that_of_few_bits(tmp_path, monkeypatch):
    """A model fits in 8 bits where it does not fit whole; one that is drawn stands there whole
    first, and says so."""
    from glassformer.core import memory

    model = tiny.model(tiny.DECODERS["llama"])
    glassformer.save(model, tmp_path / "plain")
    total = sum(weight.nbytes for weight in model.parameters())
    quantize_weights(model, QuantizedLayout(8))
    few = sum(weight.nbytes for weight in model.parameters())
    assert few < total / 2
    for have in (few, few - 1):
        monkeypatch.setattr(memory, "available_memory", lambda *_, have=have: have)
        with pytest.raises(UserError, match="float32"):
            Checkpoint.open(tmp_path / "plain").model()
        if have == few:
            again = Checkpoint.open(tmp_path / "plain").model(bits=8)
            assert torch.equal(logits_of(again), logits_of(model)) and len(quantized(again)) == len(
                quantized(model)
            )
        else:
            with pytest.raises(
                UserError, match=f"take {re.escape(memory.gibibytes(few))} in 8 bits and cpu has"
            ):
                Checkpoint.open(tmp_path / "plain").model(bits=8)
    monkeypatch.setattr(memory, "available_memory", lambda *_: 40 << 30)
    with pytest.raises(
        UserError,
        match=r"take 69\.\d+ GiB in 8 bits \(262\.\d+ GiB in float32 "
        r"while",
    ):
        Checkpoint.open("llama/3-70b").model(bits=8)

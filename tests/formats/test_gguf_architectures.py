"""Models of llama.cpp's architectures, against the files that its own converter writes of them
(gguf_facts.py): fields, names, shapes and numbers."""

from __future__ import annotations

import json

import pytest
import torch

import glassformer
import tiny
from formats.gguf_facts import FACTS, facts_of, model_of
from glassformer.core.nn.model import inference
from glassformer.formats import gguf, store

CASES = json.loads(FACTS.read_text(encoding="utf-8"))
# fields of the converter's that have nothing to do with the model
THEIRS = {
    "Falcon": {"falcon.context_length": 2048},
    "Phimoe": {"phimoe.rope.scaling.original_context_length": 64},
}
UNEQUAL = ("Gemma", "Mamba2")  # whose files hold 1 + x or -exp(x): x comes back rounded


def logits_of(model):
    with inference(model):
        return model(torch.arange(40)[None] * 7 % 61).logits


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_converters(tmp_path, name):
    """Written: their fields and tensors, bit for bit; read back: the same model."""
    facts, family = CASES[name], name.partition(" ")[0]
    model = model_of(facts["config"])
    gguf.save(model, tmp_path / "model.gguf", "F32", None)
    ours, theirs = facts_of(tmp_path / "model.gguf"), THEIRS.get(family, {})
    assert ours["tensors"] == facts["tensors"]
    assert {**ours["fields"], **theirs} == facts["fields"]
    back, tokenizer = glassformer.load(tmp_path / "model.gguf")
    assert tokenizer is None
    if family.startswith(UNEQUAL):
        torch.testing.assert_close(logits_of(back), logits_of(model), rtol=0.0, atol=1e-5)
    else:
        assert tiny.equal_tensors(back.state_dict(), model.state_dict())
        assert torch.equal(logits_of(back), logits_of(model))
    gguf.save(back, tmp_path / "again.gguf", "F32", None)
    assert facts_of(tmp_path / "again.gguf")["fields"] == ours["fields"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    model = model_of(CASES[name]["config"])
    store.save(model, tmp_path / "theirs", layout="hf")
    gguf.save(model, tmp_path / "model.gguf", "F32", None)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    back, _ = glassformer.load(tmp_path / "model.gguf")
    with torch.no_grad():
        expected = theirs(torch.arange(40)[None] * 7 % 61).logits
    assert expected.std() > 0.3
    largest = float(expected.abs().max())
    torch.testing.assert_close(logits_of(back), expected, rtol=0.0, atol=1e-5 * max(largest, 1.0))

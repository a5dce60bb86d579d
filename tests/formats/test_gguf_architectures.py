"""Models of llama.cpp's architectures, against the files that its own converter writes of them
(gguf_facts.py): fields, names, shapes and numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import glassformer
import tiny
from formats.gguf_facts import ENCODERS, FACTS, facts_of, model_of
from glassformer import config
from glassformer import families as recipes
from glassformer.core.nn import build_model
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
        out = model(torch.arange(40)[None] * 7 % 61)
    return out.hidden if model.config.head is None else out.logits


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


@pytest.mark.parametrize("mode", ["mean", "first", "last"])
def test_vectors_of_a_text_are_pooled_as_before(tmp_path, mode):
    """An encoder's vector of a text, by llama.cpp's pooling_type."""
    cfg = recipes.read_config(CASES["Bert"]["config"])[1]
    model = build_model(replace(cfg, pool=config.Pool(mode, normalize=True)), seed=0).eval()
    gguf.save(model, tmp_path / "model.gguf", "F32", None)
    back, _ = glassformer.load(tmp_path / "model.gguf")
    assert back.config.pool == model.config.pool
    assert tiny.equal_tensors(back.state_dict(), model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    model = model_of(CASES[name]["config"])
    store.save(model, tmp_path / "theirs", layout="hf")
    gguf.save(model, tmp_path / "model.gguf", "F32", None)
    encodes = name in ENCODERS
    kind = transformers.AutoModel if encodes else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(tmp_path / "theirs").eval()
    back, _ = glassformer.load(tmp_path / "model.gguf")
    with torch.no_grad():
        expected = theirs(torch.arange(40)[None] * 7 % 61)
    expected = expected.last_hidden_state if encodes else expected.logits
    assert expected.std() > 0.3
    largest = float(expected.abs().max())
    torch.testing.assert_close(logits_of(back), expected, rtol=0.0, atol=1e-5 * max(largest, 1.0))

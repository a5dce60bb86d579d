"""Experts of four bits beside transformers, which reads the same folder and makes bfloat16 of it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from families.parity import TOLERANCE, tokens, transformers
from families.test_parity_more_decoders import reference_of
from folders import edit_json
from glassformer.formats import store
from mistakes import mistake
from seeding import generator_from
from tiny import equal_tensors

SIZES = {"hidden_size": 64, "intermediate_size": 32}
QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


@pytest.fixture
def folder(tmp_path):
    """A random GPT-OSS whose experts have four bits, laid out as the published ones."""
    reference_of("GptOss", **SIZES).save_pretrained(tmp_path)
    tensors, draw = load_file(tmp_path / "model.safetensors"), generator_from(3)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = experts, outputs, inputs // 32
        blocks = torch.randint(256, (*shape, 16), generator=draw)
        tensors[f"{name}_blocks"] = blocks.to(torch.uint8)
        scales = torch.randint(117, 123, shape, generator=draw)
        tensors[f"{name}_scales"] = scales.to(torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    edit_json(tmp_path / "config.json", quantization_config=QUANTIZATION)
    return tmp_path


def test_it_computes_as_transformers_does(folder, terminal, tmp_path):
    reference = transformers.GptOssForCausalLM.from_pretrained(
        folder,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        dtype=torch.float32,
    ).eval()
    model, _ = store.load(folder, dtype="float32")
    ids = tokens()
    with torch.no_grad():
        expected = reference(ids).logits
        assert_close(model(ids).logits, expected, rtol=0.0, atol=TOLERANCE)
    assert expected.std() > 0.1
    assert terminal.json(f"doctor {folder}")["loads"]
    store.save(model, tmp_path / "plain", layout="hf")  # as numbers, bit for bit theirs
    plain = transformers.GptOssForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert equal_tensors(plain.state_dict(), reference.state_dict())


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda x: x[..., :8], r"down_proj_blocks .* are no MXFP4; download them again"),
        (lambda x: x.to(torch.int8), r"down_proj_blocks .* are no MXFP4; download them again"),
        (None, r"the files lack .*mlp.experts.down_proj"),
    ],
)
def test_what_does_not_fit_is_one_sentence(folder, change, sentence):
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_blocks"
    blocks = tensors.pop(name)
    if change:
        tensors[name] = change(blocks).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with mistake(sentence):
        store.load(folder)


def test_a_scale_that_is_no_number_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.experts.down_proj_scales"][0, 0] = 255
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with mistake("down_proj holds numbers that are NaN, infinite or too large"):
        store.load(folder)[0](tokens())


def test_numbers_beside_the_blocks_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.experts.down_proj"] = torch.zeros(4, 32, 64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with mistake("layers.1.mlp.experts.down_proj lies there as MXFP4 and as numbers"):
        store.load(folder)
